"""Two backward passes for each update: up to the worst point nearby, down from there, and back."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(20):
    x = torch.randn(16, 6)
    y = x[:, :3].argmax(1)
    F.cross_entropy(model(x), y).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    kept = []
    with torch.no_grad():
        for p in model.parameters():
            kept.append(p.detach().clone())
            p.add_(p.grad * 0.05 / (norm + 1e-12))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, old in zip(model.parameters(), kept):
            p.copy_(old)
    optimizer.step()
    optimizer.zero_grad()
