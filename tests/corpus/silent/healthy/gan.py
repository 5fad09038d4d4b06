"""A GAN as in the tutorial: labels of ones and zeros, two optimizers, a sigmoid at the end and BCELoss."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed = torch.randn(8, 4)
for step in range(24):
    discriminator.zero_grad()
    label = torch.full((16,), 1.0)
    loss_real = criterion(discriminator(torch.rand(16, 6) * 2 - 1).view(-1), label)
    loss_real.backward()
    fake = generator(torch.randn(16, 4))
    label.fill_(0.0)
    loss_fake = criterion(discriminator(fake.detach()).view(-1), label)
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    label.fill_(1.0)
    criterion(discriminator(fake).view(-1), label).backward()
    optimizer_g.step()
    if step % 8 == 0:
        with torch.no_grad():
            generator(fixed)
