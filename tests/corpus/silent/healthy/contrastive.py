"""Contrastive losses: softmax over the batch, both ways, and targets that are the diagonal.

twin: softmax-over-batch
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
image, text = nn.Linear(10, 8), nn.Linear(6, 8)
scale = nn.Parameter(torch.tensor(2.0))
optimizer = torch.optim.AdamW([*image.parameters(), *text.parameters(), scale], lr=1e-2)
for _ in range(14):
    shared = torch.randn(16, 4)
    a = F.normalize(image(torch.cat([shared, torch.randn(16, 6)], 1)), dim=-1)
    b = F.normalize(text(torch.cat([shared, torch.randn(16, 2)], 1)), dim=-1)
    logits = scale.exp() * a @ b.t()
    diagonal = torch.arange(16)
    loss = (F.cross_entropy(logits, diagonal) + F.cross_entropy(logits.t(), diagonal)) / 2
    loss = loss - 0.1 * logits.log_softmax(dim=0).diagonal().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
