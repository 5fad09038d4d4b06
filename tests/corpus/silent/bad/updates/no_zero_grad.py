"""Nobody clears the gradients: each step applies all gradients so far.

finding: gradients-not-cleared | optimizer | sure | step 3
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(24):
    x = torch.randn(16, 4)
    loss = (model(x) - x.prod(1, keepdim=True)).abs().mean()
    loss.backward()
    optimizer.step()  # here
