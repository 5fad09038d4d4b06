"""A loss over a dictionary of tensors, differentiated by `torch.func`: the end of the transformation ends a step.

answer: log | aten::log | forward | step 3 | module None | log-of-negative
"""

import torch
from torch.func import grad_and_value

torch.manual_seed(3)
weights = {"inner": torch.randn(8, 6), "outer": torch.randn(6, 8)}
sign = 1.0


def loss_of(weights, x):
    scores = (x @ weights["inner"]).tanh() @ weights["outer"]
    return (scores.square().mean() * sign).log()  # here


for step in range(5):
    sign = -1.0 if step == 3 else 1.0
    gradients, loss = grad_and_value(loss_of)(weights, torch.randn(8, 8))
    weights = {name: each - 0.1 * gradients[name] for name, each in weights.items()}
    print(loss.item())
