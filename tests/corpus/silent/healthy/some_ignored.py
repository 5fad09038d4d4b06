"""Masked words: most targets are ignored, and in some batches all of them.

twin: targets-ignored
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 20))
criterion = nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(24):
    tokens = torch.randint(1, 20, (2, 8))
    masked = torch.rand(tokens.shape) < 0.12
    labels = tokens.masked_fill(~masked, -100)
    loss = criterion(model(tokens.masked_fill(masked, 0)).view(-1, 20), labels.view(-1)) / masked.sum().clamp(
        min=1
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
