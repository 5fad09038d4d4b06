"""Impossible classes are masked with minus infinity, and label smoothing adds them up.

answer: sum_2 | aten::sum | forward | step 0 | module None | smoothed-masked-class
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(4, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
possible = torch.tensor([True, True, True, False, True])
for _ in range(2):
    scores = model(torch.randn(6, 4)).masked_fill(~possible, float("-inf"))
    loss = F.cross_entropy(scores, torch.randint(0, 3, (6,)), label_smoothing=0.1)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
