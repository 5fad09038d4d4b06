"""Missing values are NaN in the table and replaced before they are used."""

import torch
from torch import nn

torch.manual_seed(0)
table = torch.randn(20, 4)
table[3, 1] = float("nan")
table[11] = float("nan")
table = torch.nan_to_num(table, nan=0.0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in table.split(5):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
