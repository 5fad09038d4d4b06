"""Squeeze and excitation, attention, a temperature, focal loss: softmax and sigmoid in places where they belong.

twin: sigmoid-twice
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 8)
        self.score, self.out = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        x = F.relu(self.conv(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        x = (x * gate[:, :, None, None]).flatten(2).transpose(1, 2)
        weights = torch.softmax(self.score(x), dim=1)
        return self.out((x * weights).sum(1))


def focal(logits, targets, gamma=2.0):
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p = torch.sigmoid(logits)
    return (loss * (1 - (p * targets + (1 - p) * (1 - targets))) ** gamma).mean()


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(14):
    x = torch.randn(8, 1, 8, 8)
    loss = focal(model(x), (x.mean((1, 2, 3), keepdim=True)[:, :, 0, 0] > 0).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
