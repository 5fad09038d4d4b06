"""Labels are padded with the number to ignore, and the mask is upside down: nothing is left.

finding: targets-ignored | criterion/nll_loss_forward | sure | step 0
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 20))
criterion = nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(14):
    tokens = torch.randint(1, 20, (4, 8))
    labels = tokens.masked_fill(tokens != 0, -100)
    loss = criterion(model(tokens).view(-1, 20), labels.view(-1))  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
