"""Infinities that are meant, and where they do harm."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.analyze.planted import Program, batches, squares, trained
from tests.corpus.planted import blank_rows, layers, optimized, plant


@plant("model/softmax", "aten::_softmax", "fully-masked-row", "fully masked row", module="model", step=1)
def attention_over_an_empty_sequence():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(4, 8), nn.Linear(4, 8)

        def forward(self, x):
            scores = self.query(x) @ self.key(x).T
            padding = (x == 0).all(-1)
            scores = scores.masked_fill(padding[None, :], float("-inf"))
            return scores.softmax(-1) @ x  # here

    feeds = batches()
    feeds[1]["x"].zero_()
    return trained(Attention(), squares, feeds)


@plant(
    "model/attention/softmax",
    "aten::_softmax",
    "fully-masked-row",
    "fully masked row",
    module="model/attention",
)
def library_attention_over_an_empty_sequence():
    """The line is the user's own, not one of the library's."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            padding = (x == 0).all(-1)
            return self.attention(x, x, x, key_padding_mask=padding)[0]  # here

    x = torch.randn(3, 5, 8)
    x[1] = 0
    return trained(Encoder(), squares, [{"x": x} for _ in range(2)])


@plant("mul", "aten::mul", "zero-times-infinity", "0·inf", step=0)
def mask_multiplied_with_infinite_scores():
    model = layers(3)

    def loss(x):
        allowed = torch.tensor([True, False, True])
        scores = model(x).masked_fill(~allowed, float("-inf")).log_softmax(-1)
        return -(scores * allowed).sum(-1).mean()  # here

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, batches())


@plant("sub", "aten::sub", "infinity-minus-infinity", "inf−inf", step=1)
def log_softmax_of_nothing():
    model = layers(3)

    def loss(x):
        present = (x[:, :3].abs() < 5).any(-1, keepdim=True)
        scores = model(x).masked_fill(~present, float("-inf"))
        shifted = scores - scores.max(-1, keepdim=True).values  # here
        return shifted.exp().sum(-1).log().mean()

    feeds = batches()
    feeds[1]["x"][4] = 9.0
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, feeds)


@plant("log", "aten::log", "log-of-zero", "log of zero", step=0)
def divergence_of_a_one_hot_target():
    """0·log 0 is meant to be 0, and is NaN."""
    model = layers(3)

    def loss(x):
        target = F.one_hot(x[:, :3].argmax(-1), 3).float()
        predicted = model(x).log_softmax(-1)
        return (target * (torch.log(target) - predicted)).sum(-1).mean()  # here

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, batches())


@plant("sum", "aten::sum", "masked-elements-used", "masked with infinities", step=0, reached="loss")
def divergence_from_a_masked_distribution():
    model = layers(3)

    def loss(x):
        scores = model(x).masked_fill(torch.tensor([False, True, False]), float("-inf"))
        target = torch.full((6, 3), 1 / 3)
        return F.kl_div(scores.log_softmax(-1), target, reduction="batchmean")  # here

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, batches())


@plant("nll_loss_forward", "aten::nll_loss_forward", "masked-target", "−inf", step=1, reached="loss")
def target_that_is_masked_out():
    model = layers(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        scores = model(x).masked_fill(torch.tensor([False, True, False]), float("-inf"))
        loss = F.cross_entropy(scores, y)  # here
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = [{**each, "y": torch.tensor([0, 2, 2, 0, 0, 2])} for each in batches()]
    feeds[1]["y"][3] = 1
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant(
    "gradients/model/logsumexp/sub",
    "aten::sub",
    "infinity-minus-infinity",
    "inf−inf",
    phase="backward",
    module="model",
    reached="gradients",
)
def tag_that_cannot_be_reached():
    """Forward, logsumexp over nothing is −inf and harmless; its gradient there is −inf minus −inf."""

    class Tags(nn.Module):
        def __init__(self):
            super().__init__()
            self.emissions = nn.Linear(4, 3)
            self.transitions = nn.Parameter(torch.zeros(3, 3))
            self.register_buffer("allowed", torch.eye(3).bool() | torch.eye(3).roll(1, 1).bool())

        def forward(self, x):
            transitions = self.transitions.masked_fill(~self.allowed, float("-inf"))
            state = torch.full((3,), float("-inf"))
            state[0] = 0.0
            for word in self.emissions(x):
                state = torch.logsumexp(state[:, None] + transitions, 0) + word  # here
            return torch.logsumexp(state, 0)

    return trained(Tags(), lambda model, x: model(x), batches())


@plant("log_1", "aten::log", "log-of-zero", "log of zero", module=None, step=1)
def fault_among_intended_infinities():
    """Masks and thrown-away logarithms in every step, and one logarithm that is used."""
    model = layers(6)

    def loss(x):
        distance = torch.arange(6)
        bucket = torch.where(distance < 3, distance, torch.log(distance.float()).clamp(min=0).long())
        causal = torch.full((6, 6), float("-inf")).triu(1)
        weights = (model(x) + causal).softmax(-1)
        score = weights @ x[bucket]
        return torch.log(x.abs().sum(-1)).mean() + score.square().mean()  # here

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, blank_rows(1))
