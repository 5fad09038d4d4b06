"""The three training steps that every speed budget is stated for.

`gpt` is a realistic model, `mlp` spends its time in a few large kernels, and `lstm` is the worst case: a
Python loop of tiny operations, where whatever is done per operation dominates. The docstrings below state the
dispatch operations of one step, counted under a `TorchDispatchMode` from the second step on (the first also
makes the optimizer's state). Changing a size changes what the budgets mean.

Two calls of the same factory give twins: equal parameters, equal batch, nothing shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Workload:
    """A training step and everything it touches; `step(**batch)` trains once."""

    name: str
    step: Callable[..., dict[str, Tensor]]
    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    batch: dict[str, Any]


class Block(nn.Module):
    """A pre-norm transformer block: causal attention, then a four times wider GELU network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    """A small decoder-only language model."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class HandLSTM(nn.Module):
    """An LSTM spelled out in elementary operations, unrolled by Python."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * width)
        self.from_state = nn.Linear(width, 4 * width)
        self.head = nn.Linear(width, inputs)

    def forward(self, sequence: Tensor) -> Tensor:
        width = self.from_state.in_features
        h = c = torch.zeros(sequence.shape[1], width)
        for x in sequence.unbind():
            gates = self.from_input(x) + self.from_state(h)
            keep, write, show, new = gates.chunk(4, dim=-1)
            c = torch.sigmoid(keep) * c + torch.sigmoid(write) * torch.tanh(new)
            h = torch.sigmoid(show) * torch.tanh(c)
        return self.head(h)


def make_gpt() -> Workload:
    """4 layers, width 256, 4 heads, sequence 128, batch 8, vocabulary 1000: 971 operations a step."""
    torch.manual_seed(0)
    model = GPT(vocabulary=1000, length=128, width=256, heads=4, layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(1000, (8, 129))

    def step(tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    batch = {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    return Workload("gpt", step, {"model": model}, {"optimizer": optimizer}, batch)


def make_mlp() -> Workload:
    """Three hidden layers of 1024, batch 256: 149 operations a step, most of the time inside matmul."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    batch = {"x": torch.randn(256, 1024), "y": torch.randint(10, (256,))}
    return Workload("mlp", step, {"model": model}, {"optimizer": optimizer}, batch)


def make_lstm() -> Workload:
    """64 time steps of width 64, batch 16: 3,661 operations a step, none of them large."""
    torch.manual_seed(0)
    model = HandLSTM(inputs=32, width=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(sequence: Tensor, target: Tensor) -> dict[str, Tensor]:
        loss = F.mse_loss(model(sequence), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    batch = {"sequence": torch.randn(64, 16, 32), "target": torch.randn(16, 32)}
    return Workload("lstm", step, {"model": model}, {"optimizer": optimizer}, batch)


WORKLOADS: dict[str, Callable[[], Workload]] = {"gpt": make_gpt, "mlp": make_mlp, "lstm": make_lstm}
