"""Clipping and unscaling stand in the wrong order.

finding: clipped-before-unscale | optimizer | sure | step 3
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)


def train(batches):
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(x)
        loss = (output.float() - x.mean(1, keepdim=True)).pow(2).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # here
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


train(torch.randn(8, 8) for _ in range(24))
