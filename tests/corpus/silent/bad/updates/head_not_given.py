"""The head is made after the optimizer was given the parameters of the body.

finding: not-in-optimizer | head/weight | likely | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 3)
optimizer = torch.optim.Adam(body.parameters(), lr=1e-2)  # here
for _ in range(24):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    loss = F.cross_entropy(head(body(x)), y)
    optimizer.zero_grad()
    head.zero_grad()
    loss.backward()
    optimizer.step()
