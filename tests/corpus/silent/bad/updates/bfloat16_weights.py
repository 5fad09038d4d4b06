"""Pure bfloat16 training with a small rate: most updates are smaller than the spacing of the numbers.

finding: update-lost-to-rounding | model/0/weight | sure | step 2
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(24):
    x, y = torch.randn(16, 32, dtype=torch.bfloat16), torch.randint(0, 4, (16,))
    loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # here
