"""Images as bytes turned to floats, 0 to 255, into a network without normalisation.

finding: input-scale | model/conv | likely | step 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        return self.out(F.relu(self.conv(x)).mean((2, 3)))  # here


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(14):
    images = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8)
    loss = F.cross_entropy(model(images.float()), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
