"""One line, reached from another place in every step: the place that failed is named.

answer: log | aten::log | forward | step 2 | module None | log-of-zero
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def surprise(p):
    return -torch.log(p)  # here


for step in range(4):
    target = torch.rand(5, 4) + 0.1
    if step == 2:
        target[1, 1] = 0.0
    if step % 2 == 1:
        cost = surprise(target)
    elif step == 0:
        cost = surprise(target)
    else:
        cost = surprise(target)  # from
    loss = (model(target) * cost).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
