"""Probabilities over the batch, and a cross entropy written by hand.

finding: softmax-over-batch | model/2/softmax | likely | step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Softmax(dim=0))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(14):
    x, y = torch.randn(16, 6), torch.eye(4)[torch.randint(0, 4, (16,))]
    probabilities = model(x)  # here
    loss = -(y * torch.log(probabilities + 1e-9)).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
