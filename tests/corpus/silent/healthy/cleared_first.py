"""Gradients are cleared before the backward pass, in the usual places.

twin: cleared-before-step
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model.zero_grad()
for _ in range(24):
    x = torch.randn(8, 5)
    optimizer.zero_grad()
    loss = (model(x) - x[:, :1]).pow(2).mean()
    loss.backward()
    optimizer.step()
    model.zero_grad()
