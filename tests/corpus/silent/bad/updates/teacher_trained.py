"""Distillation in which the optimizer has student and teacher, and the teacher's output is not detached.

finding: copy-is-trained | teacher | sure | step 3
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
teacher = copy.deepcopy(student).eval()
optimizer = torch.optim.Adam([*student.parameters(), *teacher.parameters()], lr=1e-3)  # here
for _ in range(24):
    x = torch.randn(16, 6)
    loss = F.mse_loss(student(x + 0.1 * torch.randn_like(x)), teacher(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.lerp_(fast, 0.01)
