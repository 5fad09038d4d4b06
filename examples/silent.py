"""Train a small classifier that learns, and would learn better: two lines of it are wrong, and nothing shows it.

    tensortap run examples/silent.py

Nothing in this file knows of tensortap.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

STEPS, BATCH, WIDTH, CLASSES = 240, 128, 16, 4


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(WIDTH, 256)
        self.blocks = [nn.Linear(256, 256) for _ in range(3)]
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x):
        h = torch.relu(self.inside(x))
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.head(h)


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
truth = torch.randn(WIDTH, CLASSES)
for step in range(STEPS):
    x = torch.randn(BATCH, WIDTH)
    loss = F.cross_entropy(model(x), (x @ truth).argmax(dim=1))
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step:3}  loss {loss.item():.3f}", flush=True)
