"""A deep residual stack with normalisation, whose stream grows a little from block to block.

twin: growing-signal
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), *[Block() for _ in range(10)], nn.LayerNorm(16), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(16, 8)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
