"""Memory that nobody has written goes into a layer.

answer: empty | aten::empty | forward | step 0 | module None | uninitialised
"""

import torch
from torch import nn

torch.utils.deterministic.fill_uninitialized_memory = True
torch.use_deterministic_algorithms(
    True
)  # fills what is not written with NaN: as luck would have it, every time
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    x = torch.empty(8, 4)  # here
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
