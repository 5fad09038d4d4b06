"""A bad row reaches the running statistics of a normalisation, which are no parameters.

answer: log_1 | aten::log | forward | step 1 | module None | log-of-zero
reached: 6 of 6 gradients
reached: 6 parameters
reached: 2 buffers
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(4):
    x = torch.rand(6, 4) + 0.1
    if batch == 3:
        x[2, 2] = 0.0
    loss = model(torch.log(x)).square().mean() / 2  # here
    loss.backward()
    if batch % 2:
        optimizer.step()
        optimizer.zero_grad()
