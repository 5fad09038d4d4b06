"""Inner steps on copies of the weights by functional_call, outer steps on the weights themselves."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
outer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(16):
    total = 0.0
    for _ in range(2):
        height, phase = torch.rand(()) * 4 + 1, torch.rand(()) * 3
        x = torch.rand(10, 1) * 10 - 5
        y = height * torch.sin(x + phase)
        fast = dict(model.named_parameters())
        loss = F.mse_loss(functional_call(model, fast, x), y)
        gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {name: p - 0.01 * g for (name, p), g in zip(fast.items(), gradients)}
        total = total + F.mse_loss(functional_call(model, fast, x), y)
    outer.zero_grad()
    total.backward()
    outer.step()
