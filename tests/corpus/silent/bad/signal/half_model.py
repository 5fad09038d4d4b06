"""A model turned to float16 altogether, with losses averaged over many elements.

finding: float16-gradients-vanish | model | sure | step 9
"""

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(64, 8), nn.Linear(8, 64)

    def forward(self, x):
        return self.decode(torch.relu(self.encode(x)))


torch.manual_seed(0)
model = Autoencoder().half()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for _ in range(30):
    x = (torch.rand(256, 64) * 1e-2).half()
    loss = nn.functional.mse_loss(model(x).float() * 1e-2, x.float() * 1e-2)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
