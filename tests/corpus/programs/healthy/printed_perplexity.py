"""The exponential of a large loss is only printed."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(3):
    loss = model(torch.randn(6, 4) * 100).square().mean() + 90
    print(f"perplexity {torch.exp(loss).item():.3g}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
