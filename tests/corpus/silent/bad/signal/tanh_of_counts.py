"""Counts in the thousands go straight into a recurrent cell made of tanh.

finding: saturated | model | likely | step 9
also: input-scale
"""

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.from_input, self.from_state = nn.Linear(3, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, sequence):
        state = torch.zeros(sequence.shape[0], 16)
        for x in sequence.unbind(1):
            state = torch.tanh(self.from_input(x) + self.from_state(state))  # here
        return self.out(state)


torch.manual_seed(0)
model = Cell()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(30):
    counts = torch.randint(0, 5000, (8, 4, 3)).float()
    loss = (model(counts) - counts[:, -1].mean(1, keepdim=True) / 5000).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
