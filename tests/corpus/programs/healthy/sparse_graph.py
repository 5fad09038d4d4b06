"""A graph convolution over a sparse matrix."""

import torch
from torch import nn

torch.manual_seed(0)
edges = torch.randint(0, 6, (2, 12))
adjacency = torch.sparse_coo_tensor(edges, torch.ones(12), (6, 6)).coalesce()
first, second = nn.Linear(3, 4), nn.Linear(4, 2)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
for _ in range(3):
    h = torch.sparse.mm(adjacency, first(torch.randn(6, 3))).relu()
    loss = second(torch.sparse.mm(adjacency, h)).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
