"""BCEWithLogitsLoss on what a sigmoid returned.

finding: sigmoid-twice | criterion/binary_cross_entropy_with_logits | sure | step 0
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1), nn.Sigmoid())

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(0)
net = Net()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
for _ in range(14):
    x = torch.randn(16, 6)
    loss = criterion(net(x), (x[:, :1] > 0).float())  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
