"""Distillation from a fixed teacher, softened by a temperature."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
student = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for _ in range(24):
    x, y = torch.randn(16, 8), torch.randint(0, 5, (16,))
    with torch.no_grad():
        soft = F.softmax(teacher(x) / 3, dim=-1)
    logits = student(x)
    distilled = F.kl_div(F.log_softmax(logits / 3, dim=-1), soft, reduction="batchmean") * 9
    loss = 0.7 * distilled + 0.3 * F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
