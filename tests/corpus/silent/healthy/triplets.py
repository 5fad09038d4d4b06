"""A siamese network with triplets, normalised outputs, and a margin that some triplets already fulfil."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.PReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    anchor = torch.randn(16, 8)
    near, far = anchor + 0.1 * torch.randn(16, 8), torch.randn(16, 8)
    a, n, f = (F.normalize(model(each), dim=1) for each in (anchor, near, far))
    loss = F.triplet_margin_loss(a, n, f, margin=0.2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
