"""Go on from a checkpoint with a bad statistic: training does not use it, every validation does."""

import io

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def checkpoint():
    model = build()
    model[1].running_var[3] = float("nan")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return file


torch.manual_seed(0)
model = build()
model.load_state_dict(torch.load(checkpoint()))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model.train()
    loss = model(torch.randn(5, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        validation = model(torch.randn(5, 4)).square().mean()
    print(f"training {loss.item():.3f}, validation {validation.item():.3f}")
