"""Train a small classifier of sentences, with a bug that shows once in a while. `make demo` runs it.

    tensortap run examples/sentiment.py

Nothing in this file knows of tensortap. Around step 40 the loss becomes NaN; tensortap says which line made it so.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH, BATCH, STEPS = 100, 32, 12, 16, 60
PADDING = 0


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PADDING)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        present = (tokens != PADDING).unsqueeze(-1).float()
        words = self.norm(self.embed(tokens) + self.mix(self.embed(tokens))) * present
        return words.sum(dim=1) / present.sum(dim=1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        return self.head(self.encoder(tokens))


def batches():
    """Sentences of random length; the label says whether words of the upper half prevail."""
    for step in range(STEPS):
        tokens = torch.randint(1, VOCABULARY, (BATCH, LENGTH))
        lengths = torch.randint(1, LENGTH + 1, (BATCH, 1))
        if step == 40:
            lengths[3] = 0  # an empty sentence got into the data
        tokens = torch.where(torch.arange(LENGTH) < lengths, tokens, PADDING)
        labels = ((tokens > VOCABULARY // 2).sum(1) > (tokens > 0).sum(1) / 2).long()
        yield step, tokens, labels


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a model this small gains nothing from more
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, tokens, labels in batches():
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step:2}  loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
