"""One backward pass, and a step of each of two optimizers.

twin: stepped-twice
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
embed, model = nn.Embedding(40, 8, sparse=True), nn.Linear(8, 40)
sparse = torch.optim.SparseAdam(list(embed.parameters()), lr=1e-2)
dense = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(24):
    tokens = torch.randint(0, 40, (8, 5))
    loss = F.cross_entropy(model(embed(tokens[:, :-1])).flatten(0, 1), tokens[:, 1:].flatten())
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
