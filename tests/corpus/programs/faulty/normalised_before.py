"""Data is standardised before the model exists; one column is constant.

answer: div | aten::div | forward | step 0 | module None | division-by-zero
says: It was used first in step 0
"""

import torch
from torch import nn


def standardise(x):
    return (x - x.mean(0)) / x.std(0)  # here


def load():
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    x[:, 2] = 7.0
    return standardise(x)  # from


def main():
    x = load()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
