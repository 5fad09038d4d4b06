"""A scale far too large that is set again in every step.

finding: scaler-skips-every-step | optimizer | sure | step 5
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
for _ in range(24):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # here
    scaler.update(2.0**40)
