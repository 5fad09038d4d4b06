"""Evaluations, then one update with a huge learning rate: everything is bad one step later.

answer: mse_loss | aten::mse_loss | forward | step 1 | module None | overflow
says: It was one update
says: the norm of its gradient
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e13)
x, y = torch.randn(16, 4), torch.randn(16, 1)
model.eval()
with torch.no_grad():
    for _ in range(6):
        model(x)
model.train()
for _ in range(3):
    loss = F.mse_loss(model(x), y)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
