"""The backbone is frozen from the beginning, and only the head is given to the optimizer.

twin: not-in-optimizer
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
backbone.requires_grad_(False)
head = nn.Linear(16, 3)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
for _ in range(24):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    loss = F.cross_entropy(head(backbone(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
