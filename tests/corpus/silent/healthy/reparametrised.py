"""Weights that are worked out from others: weight_norm, spectral_norm, orthogonal, and the old hooks."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(8, 16)),
    nn.ReLU(),
    parametrizations.spectral_norm(nn.Linear(16, 16)),
    nn.ReLU(),
    parametrizations.orthogonal(nn.Linear(16, 16)),
    nn.utils.weight_norm(nn.Linear(16, 16)),
    nn.Tanh(),
    nn.utils.spectral_norm(nn.Linear(16, 3)),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(16, 8)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
