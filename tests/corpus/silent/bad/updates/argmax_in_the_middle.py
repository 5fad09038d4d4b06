"""Words are chosen by argmax and fed to a second network: the first one gets no gradient.

finding: cut-from-loss | generator | sure | step 1
"""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Linear(6, 10)
critic = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 1))
optimizer = torch.optim.Adam([*generator.parameters(), *critic.parameters()], lr=1e-3)
for _ in range(24):
    noise = torch.randn(12, 6)
    words = generator(noise).argmax(-1)  # here
    loss = (critic(words) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
