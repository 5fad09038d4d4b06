"""batch_norm by hand with training=True, whatever the mode of the model.

finding: statistics-move-in-evaluation | model | likely | step 6
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 2)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        h = F.batch_norm(self.first(x), self.mean, self.var, training=True)  # here
        return self.second(F.relu(h))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(4):
    model.train()
    for _ in range(4):
        x = torch.randn(16, 6)
        loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 6)).argmax(1)
