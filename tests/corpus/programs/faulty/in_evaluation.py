"""Training is fine; evaluation divides by the number of hits of a class, which is zero.

answer: div | aten::div | forward | step 3 | module None | division-by-zero
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(12, 4), torch.randint(0, 2, (12,))
for _ in range(3):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    p = model(x).softmax(-1)
    members = torch.nn.functional.one_hot(y, 3).float()
    recall = (p * members).sum(0) / members.sum(0)  # here
    print(recall.mean())
