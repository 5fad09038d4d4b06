"""Numbers too large for their type, at once or step after step."""

from __future__ import annotations

import torch
from torch import nn

from tests.analyze.planted import Program, batches, squares, trained
from tests.corpus.planted import plant


@plant("model/exp", "aten::exp", "exp-overflow", "exp", module="model", step=1)
def rate_that_overflows():
    """Only infinities: a rate is the exponential of a prediction."""

    class Rate(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 1)

        def forward(self, x):
            return torch.exp(self.layers(x))  # here

    model = Rate()
    feeds = [{"x": each["x"] * 1e-2} for each in batches()]
    feeds[1]["x"] = model.layers.weight.detach().sign().expand(6, 4) * 500
    return trained(
        model, lambda model, x: model(x).mean(), feeds, torch.optim.SGD(model.parameters(), lr=1e-3)
    )


@plant("model/to_copy", "aten::_to_copy", "cast-overflow", "float16", module="model", step=1, reached="loss")
def cache_in_half_precision():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 4)

        def forward(self, x):
            keys = self.layers(x) * 100
            cache = keys.half()  # here
            return (x @ cache.float().T) / 100

    feeds = batches()
    feeds[1]["x"][2] *= 1e4
    return trained(Cached(), lambda model, x: model(x).tanh().mean(), feeds)


@plant("model/pow", "aten::pow", "overflow", "bfloat16", module="model", step=0)
def squares_in_bfloat16():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 4)

        def forward(self, x):
            energy = self.layers(x).bfloat16() * 1e25
            return energy.pow(2).sum(-1)  # here

    return trained(Energy(), lambda model, x: model(x).float().log().mean(), batches())


@plant("model/scores/mm", "aten::mm", "overflow", "float16", module="model/scores", step=0)
def scores_in_half_precision():
    """Attention scores that were not divided by the root of the width."""

    class Scores(nn.Module):
        def forward(self, query, key):
            return query.half() @ key.half().T  # here

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores, self.layers = Scores(), nn.Linear(4, 64)

        def forward(self, x):
            h = self.layers(x) * 100
            return (self.scores(h, h).float() / 64).softmax(-1) @ x

    return trained(Attention(), squares, batches())


@plant("gradients/to_copy/to_copy", "aten::_to_copy", "cast-overflow", "float16", phase="backward")
def loss_scale_without_a_scaler():
    """A fixed loss scale, too large for float16, and nobody who looks before the step."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale = 2.0**20

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        loss = out.float().square().mean()  # here
        (loss * scale).backward()
        for parameter in model.parameters():
            parameter.grad /= scale
        optimizer.step()
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "gradients/model/embedding/embedding/embedding_dense_backward",
    "aten::embedding_dense_backward",
    "overflow",
    "sum",
    phase="backward",
    module="model/embedding",
    reached="parameter",
)
def clipping_an_infinite_gradient():
    """The gradient of a word that is everywhere overflows; clipping multiplies inf by 0, and everything is NaN."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 4)

        def forward(self, ids):
            return self.embedding(ids).mean(-1)  # here

    model = Words()
    nn.init.zeros_(model.embedding.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(ids):
        optimizer.zero_grad()
        loss = (model(ids) * 3e38).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss}

    feeds = [{"ids": torch.zeros(8, dtype=torch.long)} for _ in range(2)]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant("model/1/addmm", "aten::addmm", "overflow", "growing", module="model/1", step=4)
def learning_rate_that_explodes():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    return trained(model, squares, batches(40), torch.optim.SGD(model.parameters(), lr=10.0))


@plant(
    "optimizer/AdamW/model/weight/mul_",
    "aten::mul_",
    "overflow",
    "growing",
    phase="optimizer",
    module="model",
    step=2,
)
def weight_decay_that_overflows():
    """lr·weight_decay far above 2: weights are multiplied by it instead of shrinking."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=1e16)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).tanh().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches(4))
