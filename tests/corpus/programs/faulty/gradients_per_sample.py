"""A gradient for each sample, by `vmap` of `grad`: a step ends when both are over.

answer: sqrt | aten::sqrt | forward | step 2 | module None | sqrt-of-negative
"""

import torch
from torch.func import grad, vmap

torch.manual_seed(3)
weight = torch.randn(5)
shift = 1.0


def loss_of(weight, x):
    return ((weight @ x).square() + shift).sqrt()  # here


for step in range(4):
    shift = -1000.0 if step == 2 else 1.0
    weight = weight - 0.01 * vmap(grad(loss_of), (None, 0))(weight, torch.randn(16, 5)).mean(0)
print(weight)
