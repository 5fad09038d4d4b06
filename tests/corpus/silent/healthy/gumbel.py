"""Choices made by the Gumbel softmax, hard in the forward pass."""

import torch
from torch import nn
from torch.nn import functional as F


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 4)
        self.options = nn.Parameter(torch.randn(4, 5))
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        return self.out(F.gumbel_softmax(self.score(x), tau=0.7, hard=True) @ self.options)


torch.manual_seed(0)
model = Choice()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(16, 6)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
