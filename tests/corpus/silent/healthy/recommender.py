"""Matrix factorisation with embeddings of users and things, most of which a batch does not touch."""

import torch
from torch import nn


class Factors(nn.Module):
    def __init__(self, users=300, things=200):
        super().__init__()
        self.users, self.things = nn.Embedding(users, 8), nn.Embedding(things, 8)
        self.user_bias, self.thing_bias = nn.Embedding(users, 1), nn.Embedding(things, 1)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.thing_bias.weight)

    def forward(self, user, thing):
        product = (self.users(user) * self.things(thing)).sum(1)
        return product + self.user_bias(user).squeeze(1) + self.thing_bias(thing).squeeze(1)


torch.manual_seed(0)
model = Factors()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
for _ in range(24):
    user, thing, rating = torch.randint(0, 300, (16,)), torch.randint(0, 200, (16,)), torch.rand(16) * 4 + 1
    loss = (model(user, thing) - rating).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
