"""A table with ages and salaries, as they are.

finding: input-scale | model/0 | likely | step 0
also: saturated
"""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
age, salary = rng.uniform(18, 70, 240), rng.uniform(20_000, 90_000, 240)
X = np.stack([age, salary], 1).astype(np.float32)
y = (salary > 50_000).astype(np.float32)[:, None]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(0, 240, 16):
    batch, target = torch.tensor(X[i : i + 16]), torch.tensor(y[i : i + 16])
    loss = nn.functional.binary_cross_entropy_with_logits(model(batch), target)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
