"""One element is written through a view, and then the logarithm is taken.

answer: log | aten::log | forward | step 1 | module None | log-of-negative
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    p = model(torch.randn(3, 4)).exp() + 0.1
    if step == 1:
        p[2] = -1.0
    loss = torch.log(p).mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
