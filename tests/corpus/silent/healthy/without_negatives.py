"""Two views, a predictor, a target that is an average: no negatives, and stop-gradients on purpose."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
online = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
predictor = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
target = copy.deepcopy(online)
for p in target.parameters():
    p.requires_grad = False
optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr=1e-3)
for _ in range(24):
    x = torch.randn(16, 8)
    a, b = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    loss = 0.0
    for first, second in ((a, b), (b, a)):
        with torch.no_grad():
            goal = target(second)
        loss = loss - F.cosine_similarity(predictor(online(first)), goal.detach()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for slow, fast in zip(target.parameters(), online.parameters()):
        slow.data.mul_(0.9).add_(0.1 * fast.data)
