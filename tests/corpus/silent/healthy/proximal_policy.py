"""PPO: rollouts without gradients, several epochs over them, and an entropy bonus."""

import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, states, actions=None):
        policy = torch.distributions.Categorical(logits=self.actor(states))
        if actions is None:
            actions = policy.sample()
        return actions, policy.log_prob(actions), policy.entropy(), self.critic(states)


torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
state = torch.randn(4, 4)
for _ in range(4):
    kept = []
    for _ in range(8):
        with torch.no_grad():
            action, chance, _, value = agent(state)
        following = 0.9 * state + 0.3 * torch.randn(4, 4)
        kept.append((state, action, chance, value.flatten(), following[:, 0]))
        state = following
    states, actions, chances, values, rewards = (torch.cat(each) for each in zip(*kept))
    advantages = rewards - values
    for _ in range(2):
        for index in torch.randperm(32).chunk(4):
            _, new, entropy, value = agent(states[index], actions[index])
            ratio = (new - chances[index]).exp()
            advantage = (advantages[index] - advantages[index].mean()) / (advantages[index].std() + 1e-8)
            policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
            loss = policy + 0.5 * (value.view(-1) - rewards[index]).pow(2).mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
