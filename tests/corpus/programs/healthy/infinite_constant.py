"""A bound that is infinite on purpose, as some optimizers have it for their growth."""

import math

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
d, growth = torch.tensor(1e-6), math.inf
for _ in range(3):
    x = torch.randn(6, 4)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    d = torch.maximum(d, torch.minimum(norm * 1e-3, d * growth))
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(p.grad * d)
    optimizer.step()
