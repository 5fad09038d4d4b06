"""A step far too large in the beginning kills most units of a convolution for good.

finding: dead-units | model/conv | likely | step 12
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.relu = nn.ReLU(inplace=True)
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.relu(self.conv(x)).mean((2, 3)))  # here


torch.manual_seed(3)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1000.0)
for step in range(60):
    x = torch.rand(8, 1, 8, 8)
    loss = F.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0.5).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
