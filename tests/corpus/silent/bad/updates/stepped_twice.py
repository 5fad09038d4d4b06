"""The helper steps, and so does the loop.

finding: stepped-twice | optimizer | sure | step 3
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train_step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


for _ in range(24):
    loss = train_step(torch.randn(8, 6), torch.randint(0, 3, (8,)))
    optimizer.step()  # here
