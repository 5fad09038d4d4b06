"""The discriminator has a sigmoid, and so has its loss.

finding: sigmoid-twice | sigmoid | likely | step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 5))
discriminator = nn.Sequential(nn.Linear(5, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1), nn.Sigmoid())
first = torch.optim.Adam(generator.parameters(), lr=1e-3)
second = torch.optim.Adam(discriminator.parameters(), lr=1e-3)


def adversarial(scores, real):
    probability = torch.sigmoid(scores)  # here
    target = torch.ones_like(probability) if real else torch.zeros_like(probability)
    return nn.functional.binary_cross_entropy(probability, target)


for _ in range(14):
    real, noise = torch.randn(16, 5) + 1, torch.randn(16, 3)
    loss = adversarial(discriminator(real), True) + adversarial(
        discriminator(generator(noise).detach()), False
    )
    second.zero_grad()
    loss.backward()
    second.step()
    loss = adversarial(discriminator(generator(noise)), True)
    first.zero_grad()
    loss.backward()
    first.step()
