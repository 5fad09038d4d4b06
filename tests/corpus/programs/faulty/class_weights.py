"""Class weights are one over the count of each class, and one class does not occur.

answer: reciprocal | aten::reciprocal | forward | step 0 | module None | division-by-zero
says: It was used first in step 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x, y = torch.randn(24, 4), torch.randint(0, 2, (24,))
counts = torch.bincount(y, minlength=3).float()
weights = 1.0 / counts  # here
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = F.cross_entropy(model(x), torch.where(x[:, 0] > 0, 2, y), weight=weights)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
