"""Regression with (N, 1) on both sides, a batch of one at the end, and targets of (N) with squeezed predictions."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(65, 5)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for batch, target in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        output = model(batch)
        loss = ((output - target) ** 2).mean() + nn.functional.l1_loss(output.squeeze(1), target.squeeze(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
