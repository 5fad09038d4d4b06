"""NLLLoss wants log-probabilities and gets scores: it falls without end.

finding: logits-as-log-probabilities | criterion/nll_loss_forward | sure | step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(14):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    loss = criterion(model(x), y)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
