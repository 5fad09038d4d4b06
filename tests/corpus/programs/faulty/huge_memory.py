"""Memory that no operation has written holds huge numbers: as it was found, or as NumPy has left it there.

answer: model/0/native_layer_norm | aten::native_layer_norm | forward | step 1 | module model/0 | overflow
says: memory that nobody was seen to write: empty (huge_memory.py:16)
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    x = torch.randn(8, 4)
    if step == 1:
        x = torch.empty(8, 4)
        x.numpy()[:] = 1e30
    loss = model(x).square().mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
