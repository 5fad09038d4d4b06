"""Gates of a recurrent network, with a forget bias, partly closed as they should be.

twin: saturated
"""

import torch
from torch import nn
from torch.nn import functional as F


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.Linear(5 + 12, 48)
        with torch.no_grad():
            self.gates.bias[12:24] = 3.0
        self.out = nn.Linear(12, 2)

    def forward(self, sequence):
        hidden = state = torch.zeros(sequence.shape[0], 12)
        for x in sequence.unbind(1):
            i, f, g, o = self.gates(torch.cat([x, hidden], 1)).chunk(4, 1)
            state = torch.sigmoid(f) * state + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(state)
        return self.out(hidden)


torch.manual_seed(0)
model = Cell()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(24):
    x = torch.randn(16, 5, 5)
    loss = F.cross_entropy(model(x), (x[:, 0, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
