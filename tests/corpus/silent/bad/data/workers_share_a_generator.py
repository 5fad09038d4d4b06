"""Each worker has a copy of the generator of the data set, in the same state.

finding: same-augmentation | loader | likely | step 12
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(7)

    def __len__(self):
        return 192

    def __getitem__(self, index):  # here
        phase, rate = self.rng.uniform(0, 6), self.rng.uniform(1, 3)
        wave = np.sin(np.linspace(0, rate, 16) + phase).astype(np.float32)
        return wave, np.float32([rate])


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Waves(), batch_size=8, num_workers=2)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for wave, rate in loader:
        loss = (model(wave) - rate).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
