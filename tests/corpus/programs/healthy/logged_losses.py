"""Losses are kept in a tensor that begins with NaN, where nothing was trained yet."""

import torch
from torch import nn

torch.manual_seed(0)
losses = torch.full((6,), float("nan"))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(6, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses[step] = loss.item()
print(losses.nanmean())
