"""Trained by hand, with a module for the loss, and every pass keeps its graph for nothing: each is a step.

answer: div | aten::div | forward | step 7 | module None | division-by-zero
"""

import torch

torch.manual_seed(3)
weight = torch.randn(5, requires_grad=True)
criterion = torch.nn.MSELoss()
for step in range(9):
    x = torch.randn(10, 5)
    guess = x @ weight
    if step == 7:
        guess = guess / 0  # here
    criterion(guess, x.sum(1)).backward(retain_graph=True)
    with torch.no_grad():
        weight -= 0.1 * weight.grad
        weight.grad.zero_()
