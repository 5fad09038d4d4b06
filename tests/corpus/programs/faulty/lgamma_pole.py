"""The log of the gamma function at zero.

answer: lgamma | aten::lgamma | forward | step 1 | module None | lgamma-at-a-pole
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    counts = torch.tensor([[2.0, 3.0, 4.0], [1.0, 0.0 if step == 1 else 1.0, 5.0]])
    loss = (torch.lgamma(counts) - model(torch.randn(2, 4))).square().mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
