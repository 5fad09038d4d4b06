"""Biases start far below zero, as if they were thresholds: no unit of the hidden layer ever fires.

finding: dead-units | model/0 | sure | step 9
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
nn.init.constant_(model[0].bias, -10.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    x = torch.randn(16, 8)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
