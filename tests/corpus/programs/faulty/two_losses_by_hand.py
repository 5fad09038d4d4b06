"""Two backward passes in every step, of which the first keeps the graph for the second.

answer: log_2 | aten::log | forward | step 3 | module None | log-of-negative
"""

import torch

torch.manual_seed(3)
made = torch.randn(3, 3, requires_grad=True)
judge = torch.randn(3, 1, requires_grad=True)
for step in range(5):
    false = torch.sigmoid(torch.randn(8, 3) @ made @ judge)
    true = torch.sigmoid(torch.randn(8, 3) @ judge)
    judged = -(true.log() + (1 - false).log()).mean()
    if step == 3:
        false = false - 1
    fooled = -false.log().mean()  # here
    judged.backward(retain_graph=True)
    slope, judge.grad, made.grad = judge.grad, None, None
    fooled.backward()
    with torch.no_grad():
        judge -= 0.1 * slope
        made -= 0.1 * made.grad
        judge.grad = made.grad = None
