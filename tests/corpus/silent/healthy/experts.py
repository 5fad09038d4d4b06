"""A mixture of experts of which each sample uses the best one; some experts are rarely chosen."""

import torch
from torch import nn
from torch.nn import functional as F


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 8)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(8)]
        )
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        weight, choice = self.router(x).softmax(-1).max(-1)
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (choice == index).nonzero(as_tuple=True)[0]
            if len(rows):
                mixed = mixed.index_add(0, rows, weight[rows, None] * expert(x[rows]))
        return self.out(x + mixed)


torch.manual_seed(0)
model = Mixture()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(6, 6)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
