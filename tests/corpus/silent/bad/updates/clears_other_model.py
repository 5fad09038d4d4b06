"""Two networks; the loop clears one of them twice.

finding: gradients-not-cleared | second | sure | step 3
"""

import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(6, 2), nn.Linear(6, 1)
first = torch.optim.Adam(actor.parameters(), lr=1e-3)
second = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(24):
    states, actions, returns = torch.randn(16, 6), torch.randint(0, 2, (16,)), torch.randn(16)
    values = critic(states).squeeze(-1)
    advantage = (returns - values).detach()
    log_probabilities = torch.distributions.Categorical(logits=actor(states)).log_prob(actions)
    first.zero_grad()
    (-(log_probabilities * advantage).mean()).backward()
    first.step()
    first.zero_grad()
    (returns - values).pow(2).mean().backward()
    second.step()  # here
