"""Labels between 0 and 1 are turned to integers: all become 0.

finding: targets-constant | criterion/binary_cross_entropy_with_logits | likely | step 9
"""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
features = rng.normal(size=(320, 6)).astype("float32")
soft = 1 / (1 + np.exp(-features[:, 0]))
labels = soft.astype("int64")

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.BCEWithLogitsLoss()
for start in range(0, 320, 16):
    x = torch.from_numpy(features[start : start + 16])
    y = torch.from_numpy(labels[start : start + 16]).float()
    loss = criterion(model(x).squeeze(1), y)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
