"""The mask is upside down: all words of every sentence are multiplied by zero.

finding: loss-without-inputs | model | likely | step 9
"""

import torch
from torch import nn
from torch.nn import functional as F


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(10, 8), nn.Linear(8, 2)

    def forward(self, words, padding):
        words = words * padding.unsqueeze(-1)  # here
        return self.out(torch.tanh(self.project(words.mean(1))))


torch.manual_seed(0)
model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    words, padding = torch.randn(16, 5, 10), torch.zeros(16, 5)
    loss = F.cross_entropy(model(words, padding), (words[:, 0, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
