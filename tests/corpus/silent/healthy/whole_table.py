"""All data in every step, as many do with small tables: the batch is the same, and meant to be."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 4)).astype("float32")
y = (X @ rng.normal(size=(4, 3))).argmax(1)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(40):
    inputs, targets = torch.from_numpy(X), torch.LongTensor(y)
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
