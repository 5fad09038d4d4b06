"""An encoder and a decoder that no model holds together: what one computes goes into the other."""

import torch
from torch import nn

torch.manual_seed(0)
words, encoder = nn.Embedding(20, 12), nn.GRU(12, 16, batch_first=True)
cell, out = nn.GRUCell(12, 16), nn.Linear(16, 20)
parts = (words, encoder, cell, out)
optimizer = torch.optim.Adam([each for part in parts for each in part.parameters()], lr=5e-3)
for _ in range(20):
    source = torch.randint(20, (8, 5))
    state = encoder(words(source))[1][0]
    loss = torch.zeros(())
    for before, after in zip(source.T[:-1], source.T[1:], strict=True):
        state = cell(words(before), state)
        loss = loss + nn.functional.cross_entropy(out(state), after)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
