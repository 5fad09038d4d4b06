"""Sequence to sequence with teacher forcing now and then, packed sequences and padding to ignore."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(20, 12, padding_idx=0), nn.Embedding(20, 12, padding_idx=0)
        self.encoder, self.cell = nn.GRU(12, 16, batch_first=True), nn.GRUCell(12, 16)
        self.out = nn.Linear(16, 20)

    def forward(self, source, lengths, target):
        packed = pack_padded_sequence(self.source(source), lengths, batch_first=True, enforce_sorted=False)
        state = self.encoder(packed)[1][0]
        word, outputs = target[:, 0], []
        for t in range(1, target.shape[1]):
            state = self.cell(self.target(word), state)
            outputs.append(self.out(state))
            word = target[:, t] if random.random() < 0.5 else outputs[-1].argmax(1)
        return torch.stack(outputs, 1)


random.seed(0)
torch.manual_seed(0)
model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss(ignore_index=0)
for _ in range(20):
    sentences = [torch.randint(2, 20, (random.randint(2, 6),)) for _ in range(8)]
    source = pad_sequence(sentences, batch_first=True)
    target = torch.cat([torch.ones(8, 1, dtype=torch.long), source], 1)
    output = model(source, [len(each) for each in sentences], target)
    loss = criterion(output.flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
