"""A loss scaler written by hand tests gradients, skips the step and lowers its scale."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scale = 2.0**20
for _ in range(8):
    loss = model(torch.randn(6, 4).half()).float().square().mean()
    optimizer.zero_grad()
    (loss * scale).backward()
    if any(not torch.isfinite(p.grad).all() for p in model.parameters()):
        scale /= 4
        continue
    for p in model.parameters():
        p.grad.div_(scale)
    optimizer.step()
