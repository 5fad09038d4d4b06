"""A generator and a discriminator."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
generator, discriminator = nn.Linear(2, 4), nn.Linear(4, 1)
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(discriminator.parameters())
for _ in range(3):
    real, fake = torch.randn(8, 4), generator(torch.randn(8, 2))
    loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
    second.zero_grad()
    loss.backward()
    second.step()
    loss = F.softplus(-discriminator(fake)).mean()
    first.zero_grad()
    loss.backward()
    first.step()
