"""A buffer is filled row by row, and one row is forgotten.

answer: empty | aten::empty | forward | step 0 | module None | uninitialised
"""

import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    batch = torch.empty(4, 4)  # here
    for row in range(3):
        batch[row] = torch.randn(4)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
