"""Plain tensors on a module that are constants: a table of positions, a scale.

twin: unregistered-parameter
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        place = torch.arange(8)[:, None] * torch.exp(torch.arange(0, 16, 2) * (-math.log(1e4) / 16))
        self.positions = torch.cat([place.sin(), place.cos()], 1)
        self.scale = torch.tensor(4.0)
        self.out = nn.Linear(16, 20)

    def forward(self, tokens):
        return self.out(self.embed(tokens) * self.scale + self.positions[: tokens.shape[1]])


torch.manual_seed(0)
model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(24):
    tokens = torch.randint(0, 20, (8, 7))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
