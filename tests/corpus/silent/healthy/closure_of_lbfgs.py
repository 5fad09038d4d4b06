"""LBFGS calls its closure as often as it likes.

twin: step-without-backward
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
x = torch.randn(32, 3)
y = x.sum(1, keepdim=True).sin()


def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss


for _ in range(12):
    optimizer.step(closure)
