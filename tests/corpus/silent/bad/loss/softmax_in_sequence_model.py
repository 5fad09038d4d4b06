"""A language model returns probabilities; they are reshaped and given to cross_entropy.

finding: softmax-twice | log_softmax | sure | step 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        self.out = nn.Linear(12, 20)

    def forward(self, tokens):
        return F.softmax(self.out(self.rnn(self.embed(tokens))[0]), dim=-1)


def loss_of(model, tokens):
    probabilities = model(tokens[:, :-1]).contiguous()
    return F.cross_entropy(probabilities.view(-1, 20), tokens[:, 1:].reshape(-1))  # here


torch.manual_seed(0)
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
for _ in range(14):
    loss = loss_of(model, torch.randint(0, 20, (8, 7)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
