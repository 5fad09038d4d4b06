"""A GAN keeps the losses of its generator for a plot, with their graphs; those of the critic are freed.

finding: graph-kept-alive | history | likely | step 10
"""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in (critic, generator)]
loss_fn = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
history = []
for step in range(16):
    fake = generator(torch.randn(32, 4))
    optimizers[0].zero_grad()
    loss_fn(critic(torch.randn(32, 2) + 2), ones).backward()
    loss_fn(critic(fake.detach()), zeros).backward()
    optimizers[0].step()
    optimizers[1].zero_grad()
    loss = loss_fn(critic(fake), ones)
    loss.backward()
    optimizers[1].step()
    history.append(loss)  # here
