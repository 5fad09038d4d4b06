"""The loss is worked out from predicted classes and told to require a gradient, which leads nowhere.

finding: loss-without-parameters | model | sure | step 1
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(14):
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    predicted = model(x).argmax(1)
    loss = (predicted != y).float().mean().requires_grad_()
    optimizer.zero_grad()
    loss.backward()  # here
    optimizer.step()
