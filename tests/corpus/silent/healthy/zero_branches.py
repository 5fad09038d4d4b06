"""Residual branches whose last layer starts at zero, and a gate that does.

twin: equal-rows
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
        self.gate = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x + self.outer(F.relu(self.inner(x))) + self.gate * torch.tanh(x)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), Block(16), Block(16), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    x = torch.randn(16, 6)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
