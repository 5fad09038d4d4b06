"""Autocast to float16 with a scaler, and a small loss weight.

twin: float16-gradients-vanish
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
for _ in range(24):
    x = torch.randn(64, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        loss = 1e-2 * (output.float() - x[:, :4]).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
