"""Several tasks, a head each; a step trains one of them.

twin: never-gets-gradient
"""

import torch
from torch import nn
from torch.nn import functional as F


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleDict(
            {"sentiment": nn.Linear(16, 2), "topic": nn.Linear(16, 5), "spam": nn.Linear(16, 2)}
        )

    def forward(self, x, task):
        return self.heads[task](self.body(x))


torch.manual_seed(0)
model = MultiTask()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
tasks = ["sentiment"] * 8 + ["topic"] * 8 + ["spam"] * 8
for task in tasks:
    x = torch.randn(16, 8)
    classes = model.heads[task].out_features
    loss = F.cross_entropy(model(x, task), torch.randint(0, classes, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
