"""Losses are kept as numbers and detached tensors; a hidden state is carried over and detached.

twin: graph-kept-alive
"""

import torch
from torch import nn

torch.manual_seed(0)
model, head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 1)
parameters = [*model.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-2)
state, numbers, tensors, total = None, [], [], 0.0
for _ in range(40):
    x = torch.randn(4, 5, 3)
    output, state = model(x, None if state is None else state.detach())
    loss = (head(output) - x.sum(-1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    numbers.append(loss.item())
    tensors.append(loss.detach())
    total += float(loss)
