"""Validation under no_grad, but nobody calls eval(): the statistics learn the validation set.

finding: statistics-move-in-evaluation | model/1 | likely | step 6
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in range(4):
    for _ in range(4):
        x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 2, (8,))
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    total = 0.0
    with torch.no_grad():
        for _ in range(4):
            x, y = torch.randn(8, 1, 8, 8) + 3, torch.randint(0, 2, (8,))
            total += criterion(model(x), y).item()  # here
