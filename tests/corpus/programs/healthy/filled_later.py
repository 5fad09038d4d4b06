"""Memory from torch.empty, all of it written before it is used."""

import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = torch.empty(5)
for step in range(5):
    batch = torch.empty(4, 4)
    for row in range(4):
        batch[row] = torch.randn(4)
    out = torch.empty(4, 4)
    torch.mul(batch, 2.0, out=out)
    loss = model(out).square().mean()
    history[step] = loss.detach()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(history.mean())
