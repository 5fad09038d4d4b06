"""The same with values, in a class.

finding: clipped-after-step | optimizer | sure | step 3
"""

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.optimizer = torch.optim.RMSprop(self.policy.parameters(), lr=1e-3)

    def update(self, states, actions, returns):
        chosen = torch.distributions.Categorical(logits=self.policy(states)).log_prob(actions)
        loss = -(chosen * returns).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        torch.nn.utils.clip_grad_value_(self.policy.parameters(), 0.5)  # here


torch.manual_seed(0)
agent = Agent()
for _ in range(24):
    agent.update(torch.randn(20, 4), torch.randint(0, 2, (20,)), torch.randn(20))
