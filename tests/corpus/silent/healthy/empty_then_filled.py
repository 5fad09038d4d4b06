"""Parameters are made empty and filled in several ways.

twin: uninitialised-weight
"""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.scale = nn.Parameter(torch.Tensor(outputs))
        self.shift = nn.Parameter(torch.empty(outputs))
        self.reset()

    def reset(self):
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.bias.data.zero_()
        self.scale.data = torch.ones(self.scale.shape)
        with torch.no_grad():
            self.shift.copy_(torch.linspace(-1, 1, self.shift.numel()))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) * self.scale + self.shift


torch.manual_seed(0)
model = nn.Sequential(Layer(6, 12), nn.ReLU(), Layer(12, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(14):
    x = torch.randn(16, 6)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
