"""Cross-validation: a new model, optimizer and early stopping for each fold, best weights put back."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(60, 6)
Y = X[:, :3].argmax(1)
for fold in range(3):
    held = torch.arange(60) % 3 == fold
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best, kept = float("inf"), None
    for epoch in range(4):
        model.train()
        for index in torch.randperm(40).split(10):
            x, y = X[~held][index], Y[~held][index]
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            score = F.cross_entropy(model(X[held]), Y[held]).item()
        if score < best:
            best, kept = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
