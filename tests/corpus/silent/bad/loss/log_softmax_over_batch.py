"""log_softmax over the samples instead of the classes, then the usual loss.

finding: softmax-over-batch | model/log_softmax | sure | step 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        return F.log_softmax(self.second(F.relu(self.first(x))), dim=0)  # here


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(14):
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    loss = F.nll_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
