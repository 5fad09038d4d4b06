"""Two matrices, trained by hand: no module, no optimizer: a backward pass ends a run. One loss is bad, and no gradient.

answer: log | aten::log | forward | step 2 | module None | log-of-negative
"""

import torch

torch.manual_seed(3)
inner = torch.randn(8, 6).requires_grad_()
outer = torch.randn(6, 8).requires_grad_()
for step in range(4):
    x = torch.randn(8, 8)
    loss = ((x @ inner).relu() @ outer).square().mean()
    if step == 2:
        loss = loss + (inner.sum() * 0 - 1).log()  # here
    loss.backward()
    with torch.no_grad():
        for weight in (inner, outer):
            weight -= 0.1 * weight.grad
            weight.grad = None
    print(loss.item())
