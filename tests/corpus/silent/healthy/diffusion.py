"""Denoising diffusion with a moving average of the weights."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 16)
        self.layers = nn.Sequential(
            nn.Linear(2 + 16, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 2)
        )

    def forward(self, x, t):
        return self.layers(torch.cat([x, self.time(t)], -1))


class EMA:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)


torch.manual_seed(0)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.2, 50), 0)
model = Denoiser()
ema = EMA(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(24):
    x0, t, noise = torch.randn(32, 2) * 0.3 + 1, torch.randint(0, 50, (32,)), torch.randn(32, 2)
    a = alphas[t].unsqueeze(1)
    loss = (model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t) - noise).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
