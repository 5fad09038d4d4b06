"""Weights of a norm are ones; Adam's small steps never move them in bfloat16.

finding: update-lost-to-rounding | model/norm/weight | sure | step 2
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 32)

    def forward(self, tokens):
        return self.out(self.norm(self.embed(tokens)))


torch.manual_seed(0)
model = Block().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
for _ in range(24):
    tokens = torch.randint(0, 32, (8, 10))
    loss = F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()  # here
    optimizer.zero_grad()
