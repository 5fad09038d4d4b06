"""Sharpness-aware training: the second pass of a step divides by the norm of gradients that are all zero.

answer: optimizer/SAM/reciprocal | aten::reciprocal | optimizer | step 1 | module None | division-by-zero
"""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, rho=0.05, lr=0.1):
        super().__init__(list(parameters), {"rho": rho, "lr": lr})

    @torch.no_grad()
    def step(self, closure):
        parameters = [p for group in self.param_groups for p in group["params"]]
        with torch.enable_grad():
            loss = closure()
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        moves = [p.grad * (0.05 / norm) for p in parameters]  # here
        for p, move in zip(parameters, moves):
            p.add_(move)
        with torch.enable_grad():
            closure()
        for p, move in zip(parameters, moves):
            p.sub_(move)
            p.sub_(p.grad, alpha=0.1)
        return loss


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = SAM(model.parameters())
for step in range(3):
    x = torch.randn(6, 4)
    weight = 0.0 if step == 1 else 1.0

    def closure():
        optimizer.zero_grad()
        loss = (weight * model(x)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
