"""Parameter groups with and without weight decay, chosen by name; what matches neither is in no group.

finding: not-in-optimizer | model/position | sure | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.position = nn.Parameter(torch.randn(6, 16) * 0.02)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 20)

    def forward(self, tokens):
        return self.out(self.norm(self.embed(tokens) + self.position))


def groups(model):
    named = list(model.named_parameters())
    decay = [p for n, p in named if n.endswith("weight") and "norm" not in n]
    rest = [p for n, p in named if n.endswith("bias") or "norm" in n]
    return [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(groups(model), lr=1e-3)  # here
for _ in range(24):
    tokens = torch.randint(0, 20, (8, 6))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    model.zero_grad()
