"""A differential equation as the loss: derivatives of the network, a learned constant, and few points of data."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
rate = nn.Parameter(torch.tensor(0.1))
optimizer = torch.optim.Adam([*model.parameters(), rate], lr=1e-2)
known = torch.linspace(0, 1, 5).unsqueeze(1)
for _ in range(24):
    t = torch.rand(20, 1, requires_grad=True)
    u = model(t)
    (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    loss = (du + rate * u).pow(2).mean() + (model(known) - (-known).exp()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
