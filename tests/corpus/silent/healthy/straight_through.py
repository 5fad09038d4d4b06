"""A vector-quantised autoencoder with the straight-through estimator.

twin: cut-from-loss
"""

import torch
from torch import nn


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(10, 4), nn.Linear(4, 10)
        self.codes = nn.Embedding(16, 4)

    def forward(self, x):
        z = self.encoder(x)
        nearest = torch.cdist(z, self.codes.weight).argmin(1)
        quantised = self.codes(nearest)
        commitment = (quantised.detach() - z).pow(2).mean() * 0.25 + (quantised - z.detach()).pow(2).mean()
        quantised = z + (quantised - z).detach()
        return self.decoder(quantised), commitment


torch.manual_seed(0)
model = Quantised()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(32, 10)
    output, commitment = model(x)
    loss = (output - x).pow(2).mean() + commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
