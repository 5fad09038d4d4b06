"""A batch whose loss is not finite is left out, as the program says itself."""

import math

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x = torch.rand(6, 4) + 0.1
    if step == 2:
        x[0] = 0.0
    loss = model(torch.log(x)).square().mean()
    if not math.isfinite(loss.item()):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
