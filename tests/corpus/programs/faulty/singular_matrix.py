"""A matrix that cannot be inverted, inverted without a check.

answer: linalg_inv_ex | aten::linalg_inv_ex | forward | step 1 | module None | singular-matrix
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    x = torch.randn(6, 4)
    a = torch.eye(3) * (0.0 if step == 1 else 1.0)
    inverse, info = torch.linalg.inv_ex(a + 0 * model(x).mean())  # here
    loss = (model(x) @ inverse).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
