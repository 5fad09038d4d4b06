"""The learning rate comes from a configuration and is rounded down.

finding: learning-rate-zero | optimizer | sure | step 1
"""

import torch
from torch import nn

config = {"lr": "1e-3", "steps": "24"}
config = {name: int(float(text)) for name, text in config.items()}

torch.manual_seed(0)
model = nn.Linear(6, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])  # here
for _ in range(config["steps"]):
    x = torch.randn(16, 6)
    loss = (model(x) - x[:, :2]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
