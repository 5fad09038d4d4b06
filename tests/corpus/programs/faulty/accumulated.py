"""Gradients of four small batches are accumulated; the third is bad.

answer: log_2 | aten::log | forward | step 1 | module None | log-of-zero
says: where add_2:0 is 0
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(8):
    x = torch.rand(5, 4) + 0.1
    if batch == 6:
        x[0, 0] = 0.0
    loss = (model(x) * torch.log(x).sum(-1, keepdim=True)).mean() / 4  # here
    loss.backward()
    if batch % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
