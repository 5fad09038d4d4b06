"""A model is called with memory that nobody wrote, for shapes: before training, between two steps, and backwards."""

import torch
from torch import nn

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)  # what `empty` returns is NaN, every time
features = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6), nn.ReLU())
width = features(torch.empty(2, 8)).shape[1]
model = nn.Sequential(features, nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
given = torch.empty(4, 8, requires_grad=True)
(asked,) = torch.autograd.grad(model(given).sum(), given)
assert asked.shape == given.shape
for step in range(4):
    if step == 2:
        with torch.no_grad():
            assert model(torch.empty(1, 8)).shape == (1, 1)
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert loss.isfinite()
