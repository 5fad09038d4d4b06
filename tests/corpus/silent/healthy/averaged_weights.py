"""Stochastic weight averaging, and statistics of BatchNorm worked out at the end."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
batches = [torch.randn(16, 8) for _ in range(6)]
for epoch in range(6):
    for x in batches:
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch >= 2:
        averaged.update_parameters(model)
        schedule.step()
update_bn(batches, averaged)
