"""The third batch is bad; prints how many parameters are finite at the end, and how often the optimizer stepped."""

import atexit

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)


@atexit.register
def tell():
    finite = sum(int(p.isfinite().sum()) for p in model.parameters())
    print(f"{finite} of 5 finite, {int(optimizer.state[model.bias]['step'])} updates", flush=True)


for step in range(5):
    x = torch.rand(6, 4) + 0.1
    if step == 2:
        x[1, 1] = 0.0
    loss = model(torch.log(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
