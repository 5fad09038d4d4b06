"""Weights are plain tensors with requires_grad, so that parameters() does not have them.

finding: unregistered-parameter | model/scale | sure | step 2
"""

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.ones(4, requires_grad=True)  # here

    def forward(self, x):
        return self.linear(x) * self.scale


torch.manual_seed(0)
model = Scaled()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(16, 4)
    loss = (model(x) - 3 * x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
