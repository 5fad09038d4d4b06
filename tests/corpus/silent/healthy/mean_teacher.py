"""A teacher that is the moving average of the student.

twin: copy-is-trained
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
for _ in range(24):
    x, y = torch.randn(16, 6), torch.randint(0, 4, (16,))
    with torch.no_grad():
        target = teacher(x)
    output = student(x + 0.1 * torch.randn_like(x))
    loss = F.cross_entropy(output, y) + F.mse_loss(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.mul_(0.99).add_(fast, alpha=0.01)
