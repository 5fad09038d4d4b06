"""LBFGS calls a closure whose forward pass takes the root of a negative number.

answer: sqrt | aten::sqrt | forward | step 1 | module None | sqrt-of-negative
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
x, y = torch.rand(16, 3) + 0.5, torch.rand(16, 1)
offsets = [0.0, 5.0, 5.0]
for offset in offsets:

    def closure():
        optimizer.zero_grad()
        shifted = x.sum(1, keepdim=True) - offset
        loss = (model(x) - torch.sqrt(shifted)).square().mean()  # here
        loss.backward()
        return loss

    optimizer.step(closure)
