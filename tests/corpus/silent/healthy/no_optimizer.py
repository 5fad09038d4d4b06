"""Plain gradient descent by hand, without an optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
for _ in range(24):
    x = torch.randn(16, 3)
    loss = (model(x) - x.prod(1, keepdim=True)).pow(2).mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
