"""Fine-tuning with BatchNorm in eval mode and without gradients, all else in training mode.

twin: statistics-move-in-evaluation
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Dropout(0.1)
        self.out = nn.Linear(6, 2)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        self.norm.requires_grad_(False)
        return self

    def forward(self, x):
        return self.out(self.drop(F.relu(self.norm(self.conv(x))).mean((2, 3))))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
for epoch in range(3):
    model.train()
    for _ in range(6):
        x = torch.randn(8, 1, 8, 8)
        loss = F.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 1, 8, 8)).argmax(1)
