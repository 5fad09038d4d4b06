"""The classifier of a pretrained model is replaced after the optimizer was made.

finding: optimizer-holds-other-tensors | model/classifier/weight | sure | step 1
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.classifier = nn.Linear(16, classes)

    def forward(self, x):
        return self.classifier(self.features(x))


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # here

    def step(self, x, y):
        self.model.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
model = Net(10)
trainer = Trainer(model)
model.classifier = nn.Linear(16, 3)
for _ in range(24):
    trainer.step(torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,)))
