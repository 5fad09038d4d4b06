"""The model ends in a softmax, and the loss applies another one.

finding: softmax-twice | criterion/log_softmax | sure | step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(dim=1))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(14):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    loss = criterion(model(x), y)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
