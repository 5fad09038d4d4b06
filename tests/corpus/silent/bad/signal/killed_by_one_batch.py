"""One batch far out of range in the beginning kills most units of a convolution for good.

finding: dead-units | model/conv | likely | step 20
also: input-scale
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


torch.manual_seed(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(60):
    x = torch.rand(8, 1, 8, 8)
    y = (x.mean((1, 2, 3)) > 0.5).long()
    loss = F.cross_entropy(model(x * 1000 if step == 0 else x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
