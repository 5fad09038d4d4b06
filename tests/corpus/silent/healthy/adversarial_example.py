"""The input is trained and not the model: backward leads to no parameter of it.

twin: loss-without-parameters
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).requires_grad_(False)
image = torch.randn(1, 8, requires_grad=True)
optimizer = torch.optim.SGD([image], lr=0.1)
for _ in range(24):
    loss = F.cross_entropy(model(image), torch.tensor([2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
