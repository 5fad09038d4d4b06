"""Scores of attention in half precision exceed what it holds.

answer: model/bmm | aten::bmm | forward | step 1 | module model | overflow
says: model/to_copy:0 holds -1037 to 1082
"""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x):
        q, k = self.query(x).half(), self.key(x).half()
        scores = torch.bmm(q, k.transpose(1, 2))  # here
        return scores.float().softmax(-1) @ x


torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(3):
    x = torch.randn(2, 5, 8) * (1000.0 if step == 1 else 1.0)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
