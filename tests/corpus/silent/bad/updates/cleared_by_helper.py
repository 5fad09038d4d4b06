"""A helper that logs the gradient norm clears the gradients, which stay as zeros.

finding: cleared-before-step | optimizer | sure | step 1
"""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(5, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.norms = []

    def log(self):
        self.norms.append(sum(p.grad.norm().item() for p in self.model.parameters()))
        self.model.zero_grad(set_to_none=False)  # here

    def step(self, x, y):
        (self.model(x) - y).pow(2).mean().backward()
        self.log()
        self.optimizer.step()


torch.manual_seed(0)
trainer = Trainer()
for _ in range(24):
    x = torch.randn(8, 5)
    trainer.step(x, x[:, :1])
