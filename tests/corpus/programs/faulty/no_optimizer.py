"""Updates by hand, no optimizer: the third one divides by zero.

answer: div | aten::div | forward | run 2 | module None | division-by-zero
says: the divisor `scale`
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
for step in range(4):
    x = torch.randn(6, 4)
    scale = torch.tensor(float(2 - step))
    loss = (model(x) / scale).square().mean()  # here
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
            p.grad = None
