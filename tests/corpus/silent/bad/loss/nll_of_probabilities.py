"""NLLLoss gets probabilities.

finding: logits-as-log-probabilities | nll_loss2d_forward | sure | step 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.out = nn.Linear(8, 5)

    def forward(self, words):
        return torch.softmax(self.out(self.embed(words)), dim=-1)


torch.manual_seed(0)
tagger = Tagger()
optimizer = torch.optim.Adam(tagger.parameters())
for _ in range(14):
    words, tags = torch.randint(0, 30, (4, 6)), torch.randint(0, 5, (4, 6))
    loss = F.nll_loss(tagger(words).transpose(1, 2), tags)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
