"""Two losses, one backward, and a step for each of them.

finding: stepped-twice | optimizer | sure | step 3
"""

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 3), nn.Linear(3, 8)

    def forward(self, x):
        code = torch.tanh(self.encoder(x))
        return self.decoder(code), code


torch.manual_seed(0)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(24):
    x = torch.randn(16, 8)
    output, code = model(x)
    losses = [(output - x).pow(2).mean(), code.abs().mean()]
    optimizer.zero_grad()
    sum(losses).backward()
    for _ in losses:
        optimizer.step()  # here
