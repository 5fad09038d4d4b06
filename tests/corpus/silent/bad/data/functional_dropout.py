"""F.dropout without training=self.training drops in evaluation, too.

finding: dropout-in-evaluation | model | likely | step 6
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        x = F.dropout(F.relu(self.first(x)), 0.5)  # here
        return self.second(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    model.train()
    for _ in range(4):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(16, 8)
            (model(x).argmax(1) == (x[:, 0] > 0)).float().mean()
