"""Three experts that are copies of one, averaged: they stay copies, row by row.

finding: equal-rows | model/experts | sure | step 3
"""

import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 8)
        self.experts = nn.Parameter(torch.randn(1, 8).repeat(6, 1))  # here

    def forward(self, x):
        return torch.tanh(torch.tanh(self.inner(x)) @ self.experts.t()).mean(1)


torch.manual_seed(0)
model = Mixture()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    x = torch.randn(32, 5)
    loss = (model(x) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
