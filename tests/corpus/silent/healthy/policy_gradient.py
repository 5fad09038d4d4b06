"""REINFORCE: an episode of single states, whose log-probabilities are kept until its end."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 24), nn.Dropout(0.1), nn.ReLU(), nn.Linear(24, 2), nn.Softmax(dim=1))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(14):
    state, chances, rewards = torch.randn(4), [], []
    for _ in range(6):
        choice = torch.distributions.Categorical(policy(state.unsqueeze(0)))
        action = choice.sample()
        chances.append(choice.log_prob(action))
        state = state * 0.8 + torch.randn(4) * 0.2 + (action.item() - 0.5)
        rewards.append(float(state[0]))
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = torch.cat([-c * r for c, r in zip(chances, returns)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
