"""A small transformer with the embedding as its output layer, accumulation and clipping."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, words=40, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.position = nn.Embedding(16, width)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embed(tokens) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.norm(self.blocks(x, mask=mask, is_causal=True)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(24):
    tokens = torch.randint(0, 40, (4, 9))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / 2
    loss.backward()
    if step % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
