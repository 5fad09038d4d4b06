"""The optimizer is given the parameters of the model that is only there to be compared with.

finding: optimizer-holds-other-tensors | net/body/0/weight | sure | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(0)
baseline = Net()
net = Net()
optimizer = torch.optim.AdamW(baseline.parameters(), lr=1e-2)  # here
for step in range(24):
    x = torch.randn(16, 6)
    loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    net.zero_grad()
    loss.backward()
    optimizer.step()
