"""A parameter is made with torch.empty, and nobody fills it.

finding: uninitialised-weight | model/weight | sure | step 1
"""

import torch
from torch import nn


class Bilinear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))  # here

    def forward(self, a, b):
        return ((a @ self.weight) * b).sum(-1)


torch.manual_seed(0)
noise = [torch.randn(6, 6) for _ in range(40)]
del noise
model = Bilinear(6)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(12):
    a, b = torch.randn(8, 6), torch.randn(8, 6)
    loss = (model(a, b) - (a * b).sum(-1)).pow(2).clamp(max=10).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
