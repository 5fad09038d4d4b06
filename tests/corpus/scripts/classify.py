"""Classify points: a loader, epochs, a schedule, and a loss that takes the logarithm of a softmax."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x)).softmax(-1)


class NegativeLogLikelihood(nn.Module):
    def forward(self, probabilities, target):
        chosen = probabilities.gather(-1, target[:, None])
        return -torch.log(chosen).mean()  # here


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--outlier", type=int, default=9, help="number of the row that is far from all others"
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    points = torch.randn(32, 4)
    labels = points[:, :3].argmax(-1)
    points[options.outlier] *= 1e4
    labels[options.outlier] = (labels[options.outlier] + 1) % 3
    loader = DataLoader(TensorDataset(points, labels), batch_size=8)
    model, loss_function = Classifier(), NegativeLogLikelihood()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for epoch in range(2):
        for x, y in loader:
            loss = loss_function(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
