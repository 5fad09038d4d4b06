"""Two critics, their targets, an actor and a temperature: three optimizers, gradients that others ignore."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critics = nn.ModuleList([nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2)])
targets = copy.deepcopy(critics)
log_alpha = torch.zeros(1, requires_grad=True)
for_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
for_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
for_alpha = torch.optim.Adam([log_alpha], lr=1e-3)


def act(states):
    noise = torch.randn(states.shape[0], 2)
    action = torch.tanh(actor(states) + 0.3 * noise)
    return action, -(noise.pow(2) / 2).sum(1, keepdim=True) - (1 - action.pow(2) + 1e-6).log().sum(
        1, keepdim=True
    )


for _ in range(20):
    states, actions, rewards, following = (
        torch.randn(16, 4),
        torch.rand(16, 2),
        torch.randn(16, 1),
        torch.randn(16, 4),
    )
    with torch.no_grad():
        action, chance = act(following)
        both = [each(torch.cat([following, action], 1)) for each in targets]
        expected = rewards + 0.99 * (torch.min(*both) - log_alpha.exp() * chance)
    loss = sum((each(torch.cat([states, actions], 1)) - expected).pow(2).mean() for each in critics)
    for_critics.zero_grad()
    loss.backward()
    for_critics.step()
    action, chance = act(states)
    value = torch.min(*[each(torch.cat([states, action], 1)) for each in critics])
    for_actor.zero_grad()
    (log_alpha.exp().detach() * chance - value).mean().backward()
    for_actor.step()
    for_alpha.zero_grad()
    (-(log_alpha * (chance + 2).detach()).mean()).backward()
    for_alpha.step()
    with torch.no_grad():
        for slow, fast in zip(targets.parameters(), critics.parameters()):
            slow.lerp_(fast, 0.05)
