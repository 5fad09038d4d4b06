"""Thousands of operations make the data, and some more each batch, outside of any model; the third step fails.

answer: sqrt | aten::sqrt | forward | step 2 | module None | sqrt-of-negative
"""

import torch
from torch import nn

torch.manual_seed(0)
rows = [torch.randn(4).abs() + 0.5 for _ in range(1500)]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    batch = torch.stack([row * 1.0 for row in rows[step * 300 : step * 300 + 300]])
    if step == 2:
        batch = batch - 2.0
    loss = (model(batch) * torch.sqrt(batch).sum(1, keepdim=True)).mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
