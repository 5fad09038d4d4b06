"""One term of the loss overflows float16 in every step, so the scaler skips every one.

finding: scaler-skips-every-step | optimizer | sure | step 5
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for _ in range(24):
    x = torch.randn(16, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        penalty = (output * 1e4).pow(2).mean() * 0
        loss = (output.float() - x[:, :4]).pow(2).mean() + penalty
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # here
    scaler.update()
