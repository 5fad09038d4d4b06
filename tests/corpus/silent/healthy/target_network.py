"""Deep Q-learning with a replay memory and a target network that is synchronised now and then.

twin: copy-never-follows
"""

import copy
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

random.seed(0)
torch.manual_seed(0)
online = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
target = copy.deepcopy(online)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
memory = deque(maxlen=500)
state = torch.randn(4)
for step in range(90):
    with torch.no_grad():
        action = random.randrange(2) if random.random() < 0.3 else int(online(state[None]).argmax())
    following = state * 0.9 + torch.randn(4) * 0.2
    memory.append((state, action, float(following[0]), following))
    state = following
    if len(memory) >= 32:
        states, actions, rewards, after = zip(*random.sample(memory, 16))
        values = online(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        with torch.no_grad():
            expected = torch.tensor(rewards) + 0.9 * target(torch.stack(after)).max(1).values
        loss = F.smooth_l1_loss(values, expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 10 == 0:
        target.load_state_dict(online.state_dict())
