"""The rate is multiplied by the factor of warm-up again and again instead of being set from the base.

finding: learning-rate-jumps | optimizer | likely | step 10
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(24):
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * (step + 1) if step < 10 else group["lr"]  # here
    x = torch.randn(8, 4)
    loss = (model(x) - x[:, 2:]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
