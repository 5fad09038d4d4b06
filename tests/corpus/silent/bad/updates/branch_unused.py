"""A second encoder is made and registered, and the first one is called twice.

finding: never-gets-gradient | model/right | likely | step 10
"""

import torch
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.right = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))  # here

    def forward(self, a, b):
        return (self.left(a) * self.left(b)).sum(-1)


torch.manual_seed(0)
model = Siamese()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for _ in range(24):
    a, b = torch.randn(16, 8), torch.randn(16, 8)
    y = (a[:, 0] * b[:, 0] > 0).float()
    loss = criterion(model(a, b), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
