"""An optimizer for every parameter, that steps as soon as its gradient is there."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
for _ in range(24):
    x = torch.randn(16, 6)
    F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
