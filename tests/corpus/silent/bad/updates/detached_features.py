"""Features are detached for logging, and the detached ones are used from then on.

finding: cut-from-loss | model/features | likely | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
        self.out = nn.Linear(12, 2)
        self.seen = []

    def forward(self, x):
        h = self.features(x)
        h = h.detach()  # here
        self.seen.append(h.norm().item())
        return self.out(h)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    x = torch.randn(16, 6)
    loss = F.cross_entropy(model(x), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
