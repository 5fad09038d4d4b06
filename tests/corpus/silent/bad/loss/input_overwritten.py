"""The batch is replaced by zeros of its shape before the network sees it.

finding: loss-without-inputs | model | likely | step 9
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 12)
        self.out = nn.Linear(12, 2)

    def forward(self, sequence):
        state = torch.zeros(sequence.shape[0], 12)
        for x in sequence.unbind(1):
            x = torch.zeros_like(x)  # here
            state = self.cell(x, state)
        return self.out(state)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    sequence = torch.randn(16, 3, 6)
    loss = F.cross_entropy(model(sequence), (sequence[:, 0, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
