"""zero_grad stands between backward and step.

finding: cleared-before-step | optimizer | sure | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    x, y = torch.randn(8, 5), torch.randint(0, 3, (8,))
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.zero_grad()  # here
    optimizer.step()
