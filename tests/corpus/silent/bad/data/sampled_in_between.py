"""Samples are drawn now and then with the model in eval mode; only an epoch's beginning brings it back.

finding: training-in-eval-mode | model | sure | step 6
"""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.out = nn.Embedding(20, 16), nn.Dropout(0.3), nn.Linear(16, 20)

    def forward(self, tokens):
        return self.out(self.drop(self.embed(tokens)))


class Runner:
    def __init__(self):
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    @torch.no_grad()
    def sample(self):
        self.model.eval()
        token = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(4):
            token = self.model(token)[:, -1].softmax(-1).multinomial(1)

    def epoch(self, batches):
        self.model.train()
        for i, tokens in enumerate(batches):
            logits = self.model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()  # here
            if i % 10 == 4:
                self.sample()


torch.manual_seed(0)
runner = Runner()
for _ in range(2):
    runner.epoch([torch.randint(0, 20, (8, 6)) for _ in range(12)])
