"""Two processes train one model; one of them reads a batch without a single label. Both end with NaN weights."""

import os

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for number in range(4):
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    if rank == 1 and number == 2:
        y[:] = -100
    loss = F.cross_entropy(model(x), y)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
distributed.destroy_process_group()
