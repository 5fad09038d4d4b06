"""Layers are set free one after the other, and the embedding is frozen later on."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.layers = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])
        self.out = nn.Linear(12, 4)

    def forward(self, tokens):
        x = self.embed(tokens).mean(1)
        for layer in self.layers:
            x = F.relu(layer(x)) + x
        return self.out(x)


torch.manual_seed(0)
model = Net()
model.layers.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    if epoch:
        model.layers[-epoch].requires_grad_(True)
    if epoch == 3:
        model.embed.requires_grad_(False)
    for _ in range(8):
        tokens = torch.randint(0, 30, (16, 5))
        loss = F.cross_entropy(model(tokens), tokens[:, 0] % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
