"""Images are multiplied by a mask that is zero, and go through convolutions and dropout.

finding: loss-without-inputs | model | likely | step 10
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.dropout, self.out = nn.Dropout(0.25), nn.Linear(64, 3)

    def forward(self, x):
        x = x * 0  # here
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.out(self.dropout(x.flatten(1)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(24):
    loss = F.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.randint(3, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
