"""Data-parallel training in which one rank goes astray: `astray.py MEETING WAY`. Nobody's loss is bad."""

from __future__ import annotations

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 12
WRONG_STEP = 6

warnings.simplefilter("ignore")
torch.set_num_threads(1)
meeting, way = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
torch.manual_seed(rank if way == "seeds" else 0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
if way in ("seeds", "by-hand"):
    network, reduces = model, True
else:
    # Rank 0 alone, and the others together.
    groups = [dist.new_group(ranks) for ranks in ([0], list(range(1, world)))] if way == "groups" else [None]
    network = DistributedDataParallel(
        model, broadcast_buffers=way != "buffers", process_group=groups[-1 if rank else 0]
    )
    reduces = False
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
is_odd = rank == world - 1
for step in range(STEPS):
    x = torch.randn(16, 8)
    if way == "slow" and is_odd:
        time.sleep(0.05)
    called = model if way == "skipped" and is_odd and step == WRONG_STEP else network
    if way == "skipped" and not is_odd and step == WRONG_STEP:
        called = model
    loss = called(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if reduces:
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= world
    optimizer.step()
    if way == "bit" and is_odd and step == WRONG_STEP - 1:
        with torch.no_grad():
            model[3].weight.view(torch.int32)[2, 5] ^= 1 << 3
dist.barrier()  # see forms.py
dist.destroy_process_group()
