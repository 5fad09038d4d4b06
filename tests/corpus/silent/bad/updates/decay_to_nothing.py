"""Linear decay over a tenth of the steps that are made.

finding: learning-rate-vanished | optimizer | likely | step 10
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches, epochs, accumulation = 80, 1, 8
total = batches * epochs // accumulation
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
for _ in range(batches):
    x = torch.randn(8, 4)
    loss = (model(x) - x.norm(dim=1, keepdim=True)).abs().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()  # here
    optimizer.zero_grad()
