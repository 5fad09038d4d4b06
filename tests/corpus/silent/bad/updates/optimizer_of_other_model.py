"""The model is made again, as in a notebook whose first cell is run twice; the optimizer has the first one.

finding: optimizer-holds-other-tensors | model/0/weight | sure | step 1
"""

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


torch.manual_seed(0)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # here
model = build()
criterion = nn.MSELoss()
for _ in range(24):
    x = torch.randn(32, 4)
    y = x.sum(1, keepdim=True)
    optimizer.zero_grad()
    model.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
