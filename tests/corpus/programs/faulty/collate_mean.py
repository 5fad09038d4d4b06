"""A collate function takes the mean of an empty slice.

answer: mean_1 | aten::mean | forward | step 1 | module None | mean-of-nothing
"""

import torch
from torch import nn
from torch.utils.data import DataLoader


def collate(lengths):
    rows = [torch.ones(length, 4).mean(0) for length in lengths]  # here
    return torch.stack(rows)


model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
lengths = [3, 2, 5, 1, 4, 0, 2, 3]
for x in DataLoader(lengths, batch_size=4, collate_fn=collate):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
