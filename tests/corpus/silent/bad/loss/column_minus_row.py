"""Predictions (N, 1) minus targets (N): every prediction is compared with every target.

finding: broadcast-in-loss | sub | sure | step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
features, prices = torch.randn(64, 5), torch.randn(64)
for epoch in range(4):
    for start in range(0, 64, 16):
        x, y = features[start : start + 16], prices[start : start + 16]
        loss = ((model(x) - y) ** 2).mean()  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
