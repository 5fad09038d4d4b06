"""Dropout layers in a plain list do not hear of eval().

finding: dropout-in-evaluation | model | likely | step 6
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 1)])
        self.drops = [nn.Dropout(0.2), nn.Dropout(0.2)]

    def forward(self, x):
        for layer, drop in zip(self.layers, self.drops):
            x = drop(torch.relu(layer(x)))  # here
        return self.layers[-1](x)


def run(model, batches, optimizer=None):
    model.train(optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in batches:
            loss = (model(x) - y).pow(2).mean()
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(4):
    run(model, [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(4)], optimizer)
    run(model, [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(3)])
