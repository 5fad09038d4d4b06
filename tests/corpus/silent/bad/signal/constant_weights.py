"""All weights start at the same number: all hidden units stay the same forever.

finding: equal-rows | model/0/weight | sure | step 3
"""

import torch
from torch import nn


def init(module):
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.05)  # here
        nn.init.zeros_(module.bias)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
model.apply(init)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(32, 6)
    loss = (model(x) - x[:, :1] * x[:, 1:2]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
