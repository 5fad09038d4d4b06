"""A momentum encoder with a queue; the right answer is always in column 0.

twin: targets-constant
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
query = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
key = copy.deepcopy(query).requires_grad_(False)
queue = F.normalize(torch.randn(64, 6), dim=1)
optimizer = torch.optim.SGD(query.parameters(), lr=0.05, momentum=0.9)
for _ in range(24):
    x = torch.randn(16, 8)
    q = F.normalize(query(x + 0.1 * torch.randn_like(x)), dim=1)
    with torch.no_grad():
        for slow, fast in zip(key.parameters(), query.parameters()):
            slow.data = slow.data * 0.99 + fast.data * 0.01
        k = F.normalize(key(x + 0.1 * torch.randn_like(x)), dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.t()], 1) / 0.2
    loss = F.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue = torch.cat([k, queue])[:64]
