"""Cosine decay that reaches zero in the last step.

twin: learning-rate-vanished
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
for _ in range(60):
    x = torch.randn(8, 4)
    loss = (model(x) - x.norm(dim=1, keepdim=True)).abs().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
