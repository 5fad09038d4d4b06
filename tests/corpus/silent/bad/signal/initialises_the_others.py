"""Initialisation goes over modules of known types; a parameter of the model itself is left as it came.

finding: uninitialised-weight | model/queries | sure | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(8, 8)
        self.queries = nn.Parameter(torch.Tensor(4, 8))  # here
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        weights = torch.softmax(
            torch.nan_to_num(self.queries).clamp(-1, 1) @ self.keys(x).transpose(1, 2), -1
        )
        return self.out((weights @ x).flatten(1))


def init(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


torch.manual_seed(0)
noise = [torch.randn(4, 8) for _ in range(40)]
del noise
model = Pool()
model.apply(init)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(12):
    x, y = torch.randn(8, 5, 8), torch.randint(0, 3, (8,))
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
