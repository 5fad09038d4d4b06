"""Weights are initialised with a standard deviation worked out from nothing.

answer: div | aten::div | forward | step 0 | module None | division-by-zero
says: It was used first in step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
with torch.no_grad():
    for layer in (model[0], model[2]):
        weight = torch.zeros_like(layer.weight)
        layer.weight.copy_(weight / weight.norm())  # here
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(6, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
