"""Learned prompts in front of a frozen transformer."""

import torch
from torch import nn
from torch.nn import functional as F


class Prompted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.body = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.requires_grad_(False)
        self.prompt = nn.Parameter(torch.zeros(3, 16).normal_(std=0.02))

    def forward(self, tokens):
        prompt = self.prompt.expand(tokens.shape[0], -1, -1)
        x = self.body(torch.cat([prompt, self.embed(tokens)], 1))
        return self.head(x[:, 3:])


torch.manual_seed(0)
model = Prompted()
model.eval()
optimizer = torch.optim.Adam([model.prompt], lr=1e-2)
for _ in range(24):
    tokens = torch.randint(0, 20, (8, 6))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
