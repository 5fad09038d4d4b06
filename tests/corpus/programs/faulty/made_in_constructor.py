"""A parent calls its child once in its constructor, to learn a size; later the child fails.

answer: net/encoder/scale/div | aten::div | forward | step 1 | module net/encoder/scale | division-by-zero
"""

import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, x):
        return x / x.abs().amax(-1, keepdim=True)  # here


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Scale()
        self.body = nn.Linear(4, 6)

    def forward(self, x):
        return self.body(self.scale(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        with torch.no_grad():
            width = self.encoder(torch.ones(1, 4)).shape[-1]
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    x = torch.randn(6, 4)
    if step == 1:
        x[2] = 0
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
