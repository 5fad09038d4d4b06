"""Text is sampled with top-k: all other scores become minus infinity."""

import torch
from torch import nn

torch.manual_seed(0)
embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()])
tokens = torch.randint(0, 12, (40,))
for _ in range(2):
    loss = nn.functional.cross_entropy(head(embed(tokens[:-1])), tokens[1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    token = torch.tensor([3])
    for _ in range(6):
        logits = head(embed(token)) / 0.8
        threshold = logits.topk(4).values[:, -1:]
        logits[logits < threshold] = -float("inf")
        token = torch.multinomial(logits.softmax(-1), 1)[0]
print(token.item())
