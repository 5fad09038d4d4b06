"""Five steps of the critic for one of the generator, with a penalty on gradients."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
for step in range(30):
    real = torch.randn(16, 6) * 0.5 + 1
    with torch.no_grad():
        fake = generator(torch.randn(16, 4))
    mixed = torch.lerp(real, fake, torch.rand(16, 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).pow(2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    for_critic.zero_grad()
    loss.backward()
    for_critic.step()
    if step % 5 == 4:
        for_generator.zero_grad()
        (-critic(generator(torch.randn(16, 4))).mean()).backward()
        for_generator.step()
