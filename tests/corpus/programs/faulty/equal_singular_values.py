"""The gradient of a decomposition whose singular values are equal.

answer: gradients/linalg_svd/div | aten::div | backward | step 0 | module None | equal-singular-values
"""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.Linear(3, 3, bias=False)
with torch.no_grad():
    layer.weight.copy_(torch.eye(3))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for _ in range(2):
    u, s, v = torch.linalg.svd(layer(torch.eye(3)))  # here
    loss = (u * torch.arange(9.0).view(3, 3)).sum() + s.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
