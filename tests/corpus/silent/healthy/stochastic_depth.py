"""Whole blocks are left out by chance during training."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.layer, self.keep = nn.Linear(12, 12), keep

    def forward(self, x):
        if self.training:
            if torch.rand(()) > self.keep:
                return x
            return x + F.relu(self.layer(x))
        return x + self.keep * F.relu(self.layer(x))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), *[Block(0.9 - 0.2 * i) for i in range(4)], nn.Linear(12, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    model.train()
    for _ in range(8):
        x = torch.randn(16, 6)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.inference_mode():
        model.eval()
        model(torch.randn(16, 6))
