"""kl_div wants the logarithm of its first argument; distillation gives it probabilities.

finding: logits-as-log-probabilities | mul | sure | step 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher = nn.Linear(8, 5).requires_grad_(False)
student = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for _ in range(14):
    x = torch.randn(16, 8)
    with torch.no_grad():
        target = F.softmax(teacher(x) / 2, dim=-1)
    output = F.softmax(student(x) / 2, dim=-1)
    loss = F.kl_div(output, target, reduction="batchmean")  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
