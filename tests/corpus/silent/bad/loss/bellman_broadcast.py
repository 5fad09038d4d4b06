"""Q-learning: gathered values are (N, 1), the target is (N).

finding: broadcast-in-loss | mse_loss | sure | step 0
"""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

warnings.simplefilter("ignore")


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, states):
        return self.layers(states)


def learn(network, target, optimizer, batch):
    states, actions, rewards, following, done = batch
    values = network(states).gather(1, actions.unsqueeze(1))
    with torch.no_grad():
        best = target(following).max(1).values
        expected = rewards + 0.99 * best * (1 - done)
    loss = F.mse_loss(values, expected)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


torch.manual_seed(0)
network, target = QNetwork(), QNetwork()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
for step in range(16):
    batch = (
        torch.randn(12, 4),
        torch.randint(0, 2, (12,)),
        torch.randn(12),
        torch.randn(12, 4),
        torch.zeros(12),
    )
    learn(network, target, optimizer, batch)
    if step % 4 == 3:
        target.load_state_dict(network.state_dict())
