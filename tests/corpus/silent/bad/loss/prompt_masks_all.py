"""Instruction tuning: labels of the prompt are masked, and the length of the prompt counts the answer, too.

finding: targets-ignored | model/nll_loss_forward | sure | step 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.out = nn.Linear(8, 30)

    def forward(self, tokens, labels):
        logits = self.out(self.embed(tokens))[:, :-1]
        chosen = labels[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), chosen.flatten(), reduction="sum")  # here
        return loss / (chosen != -100).sum().clamp(min=1)


def encode():
    prompt, answer = torch.randint(1, 30, (5,)), torch.randint(1, 30, (3,))
    tokens = torch.cat([prompt, answer])
    labels = tokens.clone()
    labels[: len(tokens)] = -100
    return tokens, labels


torch.manual_seed(0)
model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(14):
    tokens, labels = (torch.stack(each) for each in zip(*[encode() for _ in range(4)]))
    loss = model(tokens, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
