"""Linear warm-up from zero, then cosine.

twin: learning-rate-zero
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


def factor(step, warmup=10, total=60):
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for _ in range(60):
    x = torch.randn(16, 6)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
