"""A rectifier of which most units are silent for most inputs, but not for all.

twin: dead-units
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
nn.init.constant_(model[0].bias, -0.8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(40):
    x = torch.randn(64, 8)
    hidden = model[1](model[0](x))
    loss = (model[2](hidden) - x).pow(2).mean() + 1e-2 * hidden.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
