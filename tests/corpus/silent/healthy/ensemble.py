"""Networks in a dictionary, each with its own optimizer and schedule, fed with samples of one batch."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
members = {name: nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Linear(8, 2)) for name in "abc"}
optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.1) for name, each in members.items()}
schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 30) for each in optimizers.values()]
for _ in range(12):
    x = torch.randn(32, 6)
    y = (x[:, 0] > 0).long()
    for name, each in members.items():
        chosen = torch.randint(0, 32, (32,))
        loss = F.cross_entropy(each(x[chosen]), y[chosen])
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()
    for schedule in schedules:
        schedule.step()
