"""Newton's method by hand: no module, no optimizer, no gradient. All of it is one run.

answer: div | aten::div | forward | run 0 | module None | division-by-zero
"""

import torch

torch.manual_seed(3)
matrix = torch.randn(6, 6)
matrix = matrix @ matrix.T + 6 * torch.eye(6)
x = torch.zeros(6)
for step in range(8):
    gradient = matrix @ x - 1 + 0.1 * torch.sinh(x)
    x = x - torch.linalg.solve(matrix + torch.diag(0.1 * torch.cosh(x)), gradient)
    if step == 6:
        x = x / (x - x)  # here
print(x)
