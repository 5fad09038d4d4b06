"""A helper is called from two places; only the second call fails.

answer: log_1 | aten::log | forward | step 1 | module None | log-of-zero
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def entropy(p):
    return -(p * torch.log(p)).sum(-1)  # here


def loss_of(x, target):
    first = entropy(model(x).softmax(-1))
    second = entropy(target)  # from
    return (first + second).mean()


for step in range(3):
    x = torch.randn(5, 4)
    target = torch.rand(5, 4) + 0.1
    if step == 1:
        target[3, 2] = 0.0
    loss = loss_of(x, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
