"""Every score is compared with every other on purpose, in four spellings.

twin: broadcast-in-loss
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(14):
    x = torch.randn(12, 6)
    relevance = x[:, 0]
    column = model(x)
    scores = column.squeeze(1)
    better = (relevance.unsqueeze(1) > relevance).float()
    loss = (F.softplus(-(scores[:, None] - scores[None, :])) * better).mean()
    loss = loss + (F.softplus(-(column - column.t())) * better).mean()
    loss = loss + F.relu(1 - (scores.unsqueeze(1) - scores)).mul(better).mean()
    loss = loss + F.mse_loss(column, relevance.unsqueeze(1)) + (column - relevance.view(-1, 1)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
