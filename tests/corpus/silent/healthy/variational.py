"""A variational autoencoder: a sigmoid at the end, binary cross entropy summed up, KL by hand."""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mean, self.spread = nn.Linear(16, 12), nn.Linear(12, 3), nn.Linear(12, 3)
        self.fc3, self.fc4 = nn.Linear(3, 12), nn.Linear(12, 16)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mean, log_variance = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mean, log_variance


torch.manual_seed(0)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(24):
    x = (torch.rand(16, 16) < 0.3).float()
    output, mean, log_variance = model(x)
    kl = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    loss = F.binary_cross_entropy(output, x, reduction="sum") + kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
