"""The weights of a graph are normalised by degrees, of which one is zero.

answer: div | aten::div | forward | step 0 | module None | division-by-zero
"""

import torch
from torch import nn

torch.manual_seed(0)
edges = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 0]])
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    degrees = torch.zeros(4).index_add(0, edges[1], torch.ones(4))
    weights = degrees[edges[0]] / degrees[edges[0]]  # here
    adjacency = torch.sparse_coo_tensor(edges, weights, (4, 4))
    loss = torch.sparse.mm(adjacency, model(torch.ones(4, 3))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
