"""Gradients are clipped when they have been applied.

finding: clipped-after-step | optimizer | sure | step 3
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.LSTM(4, 8, batch_first=True)
head = nn.Linear(8, 2)
parameters = [*model.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
for _ in range(24):
    x = torch.randn(8, 5, 4)
    loss = F.cross_entropy(head(model(x)[0][:, -1]), (x[:, 0, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(parameters, 1.0)  # here
