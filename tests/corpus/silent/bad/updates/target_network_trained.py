"""The target of Q-learning is not detached, and the target network is in the optimizer by way of the agent.

finding: copy-is-trained | agent/target | sure | step 3
"""

import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target.load_state_dict(self.online.state_dict())

    def loss(self, states, actions, rewards, following):
        values = self.online(states).gather(1, actions)
        expected = rewards + 0.99 * self.target(following).max(1, keepdim=True).values
        return (values - expected).pow(2).mean()


torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)  # here
for step in range(24):
    batch = torch.randn(16, 4), torch.randint(0, 2, (16, 1)), torch.randn(16, 1), torch.randn(16, 4)
    loss = agent.loss(*batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        agent.target.load_state_dict(agent.online.state_dict())
