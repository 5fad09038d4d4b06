"""Noise is drawn after a seed is set for each item: all items of a batch have the same noise.

finding: same-augmentation | Noise | likely | step 12
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):  # here
        torch.manual_seed(index // 16)
        latent = torch.randn(6)
        return latent, latent.norm()


torch.manual_seed(0)
denoiser = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-3)
for latent, norm in DataLoader(Noise(400), batch_size=16):
    loss = (denoiser(latent).squeeze(1) - norm).abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
