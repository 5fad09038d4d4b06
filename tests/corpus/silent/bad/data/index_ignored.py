"""The data set reads from a file it opens anew, and so always returns the first rows.

finding: same-batch | Table | likely | step 12
also: dead-units
"""

import io

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TEXT = "\n".join(",".join(f"{(i * 7 + j * 3) % 11 / 11:.3f}" for j in range(5)) for i in range(200))


class Table(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):  # here
        values = [float(each) for each in io.StringIO(TEXT).readline().split(",")]
        return torch.tensor(values[:4]), torch.tensor(values[4:])


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
for x, y in DataLoader(Table(), batch_size=10, shuffle=True):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
