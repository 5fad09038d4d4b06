"""Gradients of four batches are added up, and cleared after the step.

twin: gradients-not-cleared
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer.zero_grad()
for batch in range(80):
    x = torch.randn(8, 6)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1)) / 4
    loss.backward()
    if (batch + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
