"""A dataset takes the logarithm of a pixel that is zero, in the third batch.

answer: log_2 | aten::log | forward | step 2 | module None | log-of-zero
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Intensities(Dataset):
    def __init__(self):
        torch.manual_seed(0)
        self.rows = torch.rand(32, 4) + 0.1
        self.rows[18, 1] = 0.0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.log(self.rows[index])  # here


model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Intensities(), batch_size=8):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
