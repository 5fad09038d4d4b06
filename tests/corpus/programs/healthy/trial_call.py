"""A configuration is tried and thrown away because its result is not finite."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(6, 4)
for scale in (1e30, 1e20, 1.0):
    with torch.no_grad():
        trial = (model(x) * scale).square().sum()
    if torch.isfinite(trial):
        break
for _ in range(3):
    loss = (model(x) * scale).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
