"""Padding is masked with minus infinity, in batches of different lengths."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.MultiheadAttention(8, 2, batch_first=True)
head = nn.Linear(8, 1)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
for length in (5, 7, 6, 9):
    x = torch.randn(3, length, 8)
    padding = torch.arange(length)[None] >= torch.tensor([[length], [length - 2], [3]])
    causal = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
    out, _ = model(x, x, x, key_padding_mask=padding, attn_mask=causal.isinf())
    loss = head(out).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
