"""NLLLoss with log-probabilities, and kl_div with both in logarithms.

twin: logits-as-log-probabilities
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
first, second = nn.Linear(8, 4), nn.Linear(8, 4)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
for _ in range(14):
    x = torch.randn(16, 8)
    y = x[:, :4].argmax(1)
    a, b = F.log_softmax(first(x), -1), F.log_softmax(second(x), -1)
    mutual = F.kl_div(a, b.detach(), log_target=True, reduction="batchmean")
    mutual = mutual + F.kl_div(b, a.detach().exp(), reduction="batchmean")
    loss = F.nll_loss(a, y) + F.nll_loss(b, y) + mutual
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
