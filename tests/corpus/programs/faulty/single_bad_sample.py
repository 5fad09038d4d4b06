"""One corrupt sample of a batch makes a sum overflow; nothing had been growing.

answer: model/pow | aten::pow | forward | step 5 | module model | overflow
says: Only row 3 of 8
says: Nothing had been growing
"""

import torch
from torch import nn


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.square(self.layer(x)).sum(-1)  # here


torch.manual_seed(0)
model = Energy()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(7):
    x = torch.randn(8, 4)
    if step == 5:
        x[3] = 1e25
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
