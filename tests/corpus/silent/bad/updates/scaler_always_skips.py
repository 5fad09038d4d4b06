"""The loss is so large that its gradients overflow float16, at any scale the scaler comes to.

finding: scaler-skips-every-step | optimizer | sure | step 5
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for _ in range(24):
    x = torch.randn(16, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = 1e9 * (model(x).float() - x[:, :4]).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # here
    scaler.update()
