"""A loop over layers that leaves the last one out.

finding: never-gets-gradient | model/layers/2 | likely | step 10
"""

import torch
from torch import nn
from torch.nn import functional as F


class Deep(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(depth)])  # here
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        for i in range(len(self.layers) - 1):
            x = torch.tanh(self.layers[i](x))
        return self.out(x)


torch.manual_seed(0)
model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    x = torch.randn(16, 8)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
