"""A loss without parameters, held in a variable, takes the log of zero.

answer: criterion/log | aten::log | forward | step 1 | module criterion | log-of-zero
"""

import torch
from torch import nn


class Divergence(nn.Module):
    def forward(self, logits, target):
        return (target * (torch.log(target) - logits.log_softmax(-1))).sum(-1).mean()  # here


torch.manual_seed(0)
model, criterion = nn.Linear(4, 3), Divergence()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    target = torch.rand(5, 3) + 0.1
    if step == 1:
        target[0] = torch.tensor([0.0, 0.0, 1.0])
    loss = criterion(model(torch.randn(5, 4)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
