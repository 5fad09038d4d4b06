"""Autocast to float16 without a gradient scaler: a small loss weight sends the gradients to zero.

finding: float16-gradients-vanish | model | sure | step 9
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x = torch.randn(64, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        loss = 1e-6 * (output - x[:, :4].half()).float().pow(2).mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
