"""A deep stack without normalisation, initialised four times too wide: each layer multiplies the signal.

finding: growing-signal | model | likely | step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
layers = []
for _ in range(10):
    layers += [nn.Linear(32, 32), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(32, 1))
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
for _ in range(14):
    x = torch.randn(16, 32)
    loss = model(x).abs().mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
