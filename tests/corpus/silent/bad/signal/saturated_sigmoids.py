"""Weights drawn from a normal distribution of width 10 in front of sigmoids.

finding: saturated | model/1 | likely | step 9
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 2))
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=30.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    x = torch.randn(16, 16)
    loss = F.cross_entropy(model(x) / 100, (x[:, 0] > 0).long())  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
