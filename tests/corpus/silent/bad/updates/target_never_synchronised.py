"""The target network is to follow every 1000 episodes, which never come.

finding: copy-never-follows | target | likely | step 20
"""

import copy

import torch
from torch import nn

torch.manual_seed(0)
online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target = copy.deepcopy(online)  # here
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
episode = 0
for step in range(60):
    states, following, rewards = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16)
    with torch.no_grad():
        expected = rewards + 0.9 * target(following).max(1).values
    loss = (online(states).max(1).values - expected).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode and episode % 1000 == 0:
        target.load_state_dict(online.state_dict())
