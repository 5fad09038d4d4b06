"""A learning rate beyond the stable one: every step multiplies the error, long before it overflows.

finding: growing-signal | model | likely | step 9
"""

import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 1) * 0.1)

    def forward(self, x):
        return x @ self.weight  # here


torch.manual_seed(0)
model = Linear()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
for _ in range(24):
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
