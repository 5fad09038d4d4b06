"""Validation puts the model into eval mode, and nobody brings it back.

finding: training-in-eval-mode | model | sure | step 7
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def validate():
    model.eval()
    with torch.no_grad():
        return sum(
            F.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 2, (8,))).item() for _ in range(3)
        )


model.train()
for epoch in range(4):
    for _ in range(6):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # here
    validate()
