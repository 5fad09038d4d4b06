"""Features are stacked into a new tensor made of their values, and the encoder gets no gradient.

finding: cut-from-loss | model/encoder | sure | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, sets):
        pooled = [self.encoder(each).relu().mean(0).tolist() for each in sets]  # here
        return self.head(torch.tensor(pooled))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    sets = [torch.randn(int(torch.randint(2, 6, ())), 5) for _ in range(8)]
    loss = F.cross_entropy(model(sets), torch.randint(0, 3, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
