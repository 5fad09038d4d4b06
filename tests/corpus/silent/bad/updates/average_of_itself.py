"""The moving average is worked out into new tensors and never written back.

finding: copy-never-follows | average | likely | step 12
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(6, 3)
average = copy.deepcopy(model).requires_grad_(False)  # here
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x = torch.randn(16, 6)
    with torch.no_grad():
        target = average(x)
    loss = F.mse_loss(model(x), target) + F.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow = 0.9 * slow + 0.1 * fast
