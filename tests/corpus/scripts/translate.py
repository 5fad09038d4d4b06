"""A healthy program with much that looks suspicious: masks of −inf, padding, checkpointing, a scaler."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Decoder(nn.Module):
    def __init__(self, words=20, width=16):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, words)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        causal = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
        padding = torch.zeros(ids.shape).masked_fill(ids == 0, float("-inf"))
        h = self.embedding(ids)
        for layer in self.layers:
            h = checkpoint(layer, h, causal, padding, use_reentrant=False)
        return self.head(h)


torch.manual_seed(0)
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
best = float("inf")
for _ in range(4):
    ids = torch.randint(1, 20, (3, 7))
    ids[1, 4:] = 0
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    model.eval()
    with torch.no_grad():
        best = min(best, F.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), ignore_index=0).item())
print(f"{best:.3f}")
