"""Backward is called in the first step of each epoch only, and zero_grad too: the same gradients are applied again.

finding: step-without-backward | optimizer | sure | step 3
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(4):
    for batch in range(6):
        x = torch.randn(8, 5)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if batch == 0:
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()  # here
