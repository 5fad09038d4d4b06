"""Folder names are sorted the wrong way, and all labels are 0.

finding: targets-constant | nll_loss_forward | likely | step 9
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
classes = {"cat": 0, "dog": 1, "horse": 2}
names = ["animals"] * 240
labels = torch.tensor([classes.get(name, 0) for name in names])
loader = DataLoader(TensorDataset(torch.randn(240, 8), labels), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
