"""The optimizer gets the head alone for some epochs, then the rest by add_param_group.

twin: optimizer-holds-other-tensors
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 3)
body.requires_grad_(False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(30):
    if step == 10:
        body.requires_grad_(True)
        optimizer.add_param_group({"params": body.parameters(), "lr": 0.01})
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    loss = F.cross_entropy(head(body(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
