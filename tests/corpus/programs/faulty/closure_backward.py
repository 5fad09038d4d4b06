"""A closure whose backward pass divides by the root of zero.

answer: gradients/sqrt/div | aten::div | backward | step 0 | module None | sqrt-gradient-at-zero
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 3)
x[4] = 0.0


def closure():
    optimizer.zero_grad()
    squared = model(x).square().sum(1)
    distance = torch.sqrt(squared)  # here
    loss = distance.mean()
    loss.backward()
    return loss


for _ in range(2):
    optimizer.step(closure)
