"""A running total of the loss, whose graph grows with every step.

finding: graph-kept-alive | running | likely | step 12
"""

import torch
from torch import nn


def train_epoch(model, optimizer, batches):
    running = 0
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss  # here
    return running / len(batches)


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(40)]
print(train_epoch(model, optimizer, batches))
