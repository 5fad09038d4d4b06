"""Domain adaptation: a gradient is turned around between features and domain classifier."""

import torch
from torch import nn
from torch.nn import functional as F


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


torch.manual_seed(0)
features = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
classes, domain = nn.Linear(16, 3), nn.Linear(16, 2)
modules = nn.ModuleList([features, classes, domain])
optimizer = torch.optim.SGD(modules.parameters(), lr=0.05)
for step in range(24):
    source, target = torch.randn(16, 8), torch.randn(16, 8) + 0.5
    a, b = features(source), features(target)
    strength = step / 24
    which = domain(Reverse.apply(torch.cat([a, b]), strength))
    labels = torch.cat([torch.zeros(16), torch.ones(16)]).long()
    loss = F.cross_entropy(classes(a), source[:, :3].argmax(1)) + F.cross_entropy(which, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
