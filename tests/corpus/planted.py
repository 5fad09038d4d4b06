"""Training programs of the kind people write, each with one fault planted in it and the answer it must get.

A plant is a function that returns a `Program`; the line at fault ends in `# here`. The answer says what an engineer
would call the cause: where the analysis says something else, it is the analysis that has to change.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.analyze.planted import Program, batches, squares, trained

NAN, INFINITY = float("nan"), float("inf")


@dataclass(frozen=True)
class Plant:
    """A program and its answer.

    Attributes:
        build: makes the program.
        node: full name of the node that makes the first bad value.
        op_type: what it executes.
        kind: of the cause.
        says: words the sentence of cause must have.
        phase: forward, backward, optimizer, input or parameter.
        module: path of its module, None outside of any.
        step: in which it happens.
        reached: what the bad value came to: "loss", "gradients" or "parameter"; None if it is not asked for.
    """

    build: Callable[[], Program]
    node: str
    op_type: str
    kind: str
    says: str
    phase: str
    module: str | None
    step: int
    reached: str | None

    @property
    def name(self) -> str:
        return self.build.__name__

    @property
    def line(self) -> int | None:
        """Number of the line that ends in `# here`, None if the fault is in no line."""
        lines, start = inspect.getsourcelines(self.build)
        return next((start + i for i, text in enumerate(lines) if text.rstrip().endswith("# here")), None)


PLANTS: list[Plant] = []


def plant(node, op_type, kind, says, *, phase="forward", module=None, step=0, reached=None):
    def add(build):
        PLANTS.append(Plant(build, node, op_type, kind, says, phase, module, step, reached))
        return build

    return add


def optimized(modules, optimizer, loss_of, feeds):
    """A program that trains several modules on one loss."""

    def step(x):
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return Program(step, modules, {"optimizer": optimizer}, feeds)


def layers(last=2):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, last))


def blank_rows(step, count=4):
    """Batches of random rows; in one of them some rows are all zero, as padding is."""
    feeds = batches(count)
    feeds[step]["x"][2:4] = 0
    return feeds


# --- forward: functions outside of where they are defined --------------------------------------------------


@plant("model/log", "aten::log", "log-of-zero", "log of zero", module="model", step=2)
def cross_entropy_written_by_hand():
    """Probabilities of confident predictions underflow to zero."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            probabilities = self.layers(x).softmax(-1)
            return -torch.log(probabilities)[:, 0].mean()  # here

    model = Classifier()
    with torch.no_grad():
        model.layers[2].weight[0].fill_(-30)
        model.layers[2].weight[1].fill_(30)
        model.layers[0].bias.zero_()
    feeds = [{"x": each["x"] * 1e-3} for each in batches(4)]
    feeds[2]["x"] = model.layers[0].weight.sum(0).sign().expand(6, 4) * 10.0
    return trained(model, lambda model, x: model(x), feeds, torch.optim.SGD(model.parameters(), lr=1e-5))


@plant("model/log", "aten::log", "log-of-negative", "negative", module="model", step=1)
def log_of_standardised_data():
    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][3, 2] = -0.25
    return trained(LogFeatures(), squares, feeds)


@plant("model/normalise/div", "aten::div", "division-by-zero", "0/0", module="model/normalise", step=1)
def division_by_the_norm_of_padding():
    class Normalise(nn.Module):
        def forward(self, x):
            return x / x.norm(dim=-1, keepdim=True)  # here

    model = nn.Sequential()
    model.add_module("normalise", Normalise())
    model.add_module("layers", layers())
    return trained(model, squares, blank_rows(1))


@plant("model/acos", "aten::acos", "acos-out-of-range", "outside", module="model", step=1)
def angle_between_equal_vectors():
    """Rounding brings a cosine just above 1."""

    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            h = self.layers(x)
            cosine = (x * x).sum(-1) / x.square().sum(-1) * x[:, 0]
            return torch.acos(cosine) * h.sum(-1)  # here

    feeds = [{"x": each["x"].clamp(-0.9, 0.9)} for each in batches()]
    feeds[1]["x"][0, 0] = 1.0000002
    return trained(Angles(), squares, feeds)


@plant("model/pow", "aten::pow", "power-of-negative", "negative number to a power", module="model", step=2)
def gamma_correction_of_a_negative_pixel():
    class Gamma(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()
            self.gamma = nn.Parameter(torch.tensor(2.2))

        def forward(self, x):
            return self.layers(x**self.gamma)  # here

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[2]["x"][5, 3] *= -1
    return trained(Gamma(), squares, feeds)


@plant("model/sqrt", "aten::sqrt", "sqrt-of-negative", "sqrt of a negative number", module="model", step=0)
def variance_as_a_difference():
    """E[x²]−E[x]² of large equal numbers comes out slightly negative."""

    class Standardise(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            mean = x.mean(0)
            variance = (x * x).mean(0) - mean * mean * (1 + 1e-6)
            return self.layers((x - mean) / (torch.sqrt(variance) + 1e-5))  # here

    return trained(Standardise(), squares, [{"x": torch.full((6, 4), 1000.1)} for _ in range(2)])


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


@plant("nll_loss_forward", "aten::nll_loss_forward", "mean-of-nothing", "ignored", step=1)
def every_target_is_ignored():
    model = layers(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, ignore_index=-100)  # here
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = [{**each, "y": torch.tensor([0, 1, 2, -100, 1, 0])} for each in batches()]
    feeds[1]["y"] = torch.full((6,), -100)
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant("div", "aten::div", "division-by-zero", "0/0", step=2)
def loss_divided_by_an_empty_mask():
    model = layers(1)

    def loss(x):
        mask = (x.abs().sum(-1) > 0).float()
        errors = model(x).squeeze(-1) ** 2 * mask
        return errors.sum() / mask.sum()  # here

    feeds = batches(4)
    feeds[2]["x"].zero_()
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, feeds)


@plant("std", "aten::std", "variance-of-one", "single element", step=3)
def last_batch_has_one_row():
    model = layers(1)

    def loss(x):
        score = model(x).squeeze(-1)
        return ((score - score.mean()) / score.std()).square().mean() + score.mean()  # here

    feeds = [*batches(3), {"x": torch.randn(1, 4)}]
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, feeds)


@plant(
    "model/norm/native_layer_norm",
    "aten::native_layer_norm",
    "zero-variance",
    "variance",
    module="model/norm",
    step=1,
)
def layer_norm_without_epsilon():
    """A row that is constant, and nothing added to its variance."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4, eps=0.0)
            self.layers = layers()

        def forward(self, x):
            return self.layers(self.norm(x))  # here

    return trained(Normed(), squares, blank_rows(1))


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


# --- forward: numbers too large ----------------------------------------------------------------------------


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


@plant("model/div_", "aten::div_", "division-by-zero", "Division by zero", module="model", step=1)
def normalised_in_place():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 2)

        def forward(self, x):
            h = x.clone()
            h /= h.sum(-1, keepdim=True)  # here
            return self.layers(h)

    return trained(InPlace(), squares, blank_rows(1))


@plant("model/blocks/1/log", "aten::log", "log-of-negative", "negative", module="model/blocks/1", step=0)
def inside_a_checkpointed_block():
    """The block is executed twice: the fault is in the forward pass, not in the recomputation."""

    class Block(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.linear, self.function = nn.Linear(4, 4), function

        def forward(self, x):
            return self.function(self.linear(x))

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            logarithm = lambda h: torch.log(h)  # here
            self.blocks = nn.ModuleList([Block(torch.tanh), Block(logarithm), Block(torch.tanh)])

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    return trained(Deep(), squares, batches())


# --- backward only -----------------------------------------------------------------------------------------


@plant(
    "gradients/sqrt/div", "aten::div", "sqrt-gradient-at-zero", "gradient of sqrt", phase="backward", step=1
)
def distance_between_equal_points():
    model = layers()

    def loss(x):
        embedded = model(x)
        difference = embedded[:3] - embedded[3:]
        return torch.sqrt((difference**2).sum(-1)).mean()  # here

    feeds = batches()
    feeds[1]["x"][3] = feeds[1]["x"][0]
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, feeds)


@plant(
    "gradients/model/norm/pow_1/pow",
    "aten::pow",
    "power-gradient-at-zero",
    "gradient",
    phase="backward",
    module="model/norm",
    step=2,
    reached="gradients",
)
def norm_written_as_a_power():
    class Norm(nn.Module):
        def forward(self, x):
            return x.square().sum(-1) ** 0.5  # here

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(4, 8, bias=False), Norm()

        def forward(self, x):
            return self.norm(self.first(x))

    return trained(Normed(), lambda model, x: model(x).mean(), blank_rows(2))


@plant(
    "gradients/model/acos/rsqrt",
    "aten::rsqrt",
    "acos-gradient-at-one",
    "gradient of acos",
    phase="backward",
    module="model",
)
def angle_of_a_saturated_output():
    """acos is π or 0 there, and its slope is infinite."""

    class Angle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 3)

        def forward(self, x):
            return torch.acos(torch.tanh(self.layers(x) * 100))  # here

    return trained(Angle(), lambda model, x: model(x).mean(), batches())


@plant(
    "gradients/model/log/div",
    "aten::div",
    "log-gradient-at-zero",
    "gradient",
    phase="backward",
    module="model",
)
def logarithm_hidden_by_where():
    """What where() does not choose is no matter forward, and 0/0 backward."""

    class Safe(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 4)

        def forward(self, x):
            h = self.layers(x).square() * (x > 0)
            logarithm = torch.log(h)  # here
            return torch.where(h > 0, logarithm, torch.zeros_like(h))

    return trained(Safe(), squares, batches())


@plant("gradients/model/clamp/div", "aten::div", "division-by-zero", "zero", phase="backward", module="model")
def function_with_a_wrong_backward():
    """A function of one's own whose gradient divides by its output."""

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            root = x.clamp(min=0).sqrt()
            context.save_for_backward(root)
            return root

        @staticmethod
        def backward(context, gradient):
            (root,) = context.saved_tensors
            return gradient / (2 * root)  # here

    class Rooted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 3)

        def forward(self, x):
            return Root.apply(self.layers(x))

    return trained(Rooted(), squares, batches())


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


# --- optimizer ---------------------------------------------------------------------------------------------


@plant(
    "optimizer/Adam/model/0/weight/addcdiv_",
    "aten::addcdiv_",
    "epsilon-too-small",
    "divides by zero",
    phase="optimizer",
    module="model/0",
    reached="parameter",
)
def adam_without_epsilon():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        model[1].weight.zero_()  # so that the first layer gets no gradient
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "optimizer/Adam/model/0/weight/addcdiv_",
    "aten::addcdiv_",
    "epsilon-too-small",
    "float16",
    phase="optimizer",
    module="model/0",
)
def adam_in_half_precision():
    """The usual epsilon of 1e-8 is zero in float16."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).half()
    with torch.no_grad():
        model[1].weight.zero_()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x.half()).float().square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


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


@plant("reciprocal", "aten::reciprocal", "division-by-zero", "Division by zero", step=3)
def schedule_that_divides_by_zero():
    """The learning rate is worked out in the step, from what is left of the warm-up."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warmup = torch.tensor(3.0)
    done = torch.tensor(0.0)

    def step(x):
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        rate = 0.01 / (warmup - done)  # here
        optimizer.param_groups[0]["lr"] = rate.item()
        optimizer.step()
        done.add_(1)
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches(5))


@plant(
    "optimizer/SGD/model/0/weight/add_",
    "aten::add_",
    "infinite-learning-rate",
    "infinite",
    phase="optimizer",
    module="model/0",
    step=2,
)
def infinite_learning_rate():
    """The schedule is plain Python: only the optimizer shows what it came to."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = iter([0.1, 0.01, math.inf, math.inf])

    def step(x):
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches(4))


@plant(
    "optimizer/Adam/model/0/weight/addcdiv_",
    "aten::addcdiv_",
    "infinite-learning-rate",
    "infinite",
    phase="optimizer",
    module="model/0",
    step=2,
)
def infinite_learning_rate_of_adam():
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    rates = iter([0.1, 0.01, math.inf, math.inf])

    def step(x):
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches(4))


@plant("div", "aten::div", "division-by-zero", "Division by a number", step=3, reached="loss")
def number_that_reaches_zero():
    """A temperature that is annealed to zero in plain Python."""
    model = layers(3)
    temperatures = iter([1.0, 0.5, 0.25, 0.0])

    def loss(x):
        scores = model(x) / next(temperatures)  # here
        return scores.logsumexp(-1).mean()

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, batches(4))


@plant("div", "aten::div", "division-by-zero", "constant 0", step=0)
def moving_average_corrected_at_step_zero():
    """A bias correction that counts from 0: 1 − decay⁰ is 0."""
    model, averaged = layers(), layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    decay, count = 0.9, 0

    def step(x):
        nonlocal count
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(averaged.parameters(), model.parameters(), strict=True):
                corrected = weight * (1 - decay**count) / (1 - decay**count)  # here
                mean.copy_(corrected)
        count += 1
        return {"loss": loss}

    return Program(step, {"model": model, "averaged": averaged}, {"optimizer": optimizer}, batches())


# --- over several steps, several models, several passes ----------------------------------------------------


@plant("x", "Placeholder", "bad-input", "came", phase="input", step=2)
def missing_value_in_a_batch():
    feeds = batches(4)
    feeds[2]["x"][3, 1] = NAN
    return trained(layers(), squares, feeds)


@plant(
    "model/2/weight",
    "Variable",
    "bad-parameter",
    "when the step began",
    phase="parameter",
    module="model/2",
    reached="loss",
)
def checkpoint_with_a_bad_weight():
    model = layers()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["2.weight"][1, 3] = NAN
    model.load_state_dict(state)
    return trained(model, squares, batches())


@plant(
    "model/embedding/weight",
    "Variable",
    "bad-parameter",
    "when the step began",
    phase="parameter",
    module="model/embedding",
    step=2,
)
def tied_weight_damaged_between_steps():
    """One weight with two names; something outside the step wrote into it."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(6, 4)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = Tied()

    class Damaging(list):
        def __iter__(self):
            for number, feeds in enumerate(super().__iter__()):
                if number == 2:
                    with torch.no_grad():
                        model.head.weight[0, 0] = NAN
                yield feeds

    feeds = Damaging({"ids": torch.tensor([0, 3, 5])} for _ in range(4))
    return trained(model, lambda model, ids: F.cross_entropy(model(ids), ids), feeds)


@plant("model/1/addmm", "aten::addmm", "overflow", "growing", module="model/1", step=4)
def learning_rate_that_explodes():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    return trained(model, squares, batches(40), torch.optim.SGD(model.parameters(), lr=10.0))


@plant("model/log_1", "aten::log", "log-of-negative", "negative", module="model", step=1)
def second_of_two_accumulated_batches():
    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    model = LogFeatures()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        for part in x.chunk(2):
            loss = squares(model, part) / 2
            loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][5, 0] = -1.0
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant("discriminator/log_1", "aten::log", "log-of-zero", "log of zero", module="discriminator", step=1)
def saturated_discriminator():
    class Discriminator(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 1)

        def forward(self, x):
            return torch.log(1 - torch.sigmoid(self.layers(x)))  # here

    generator, discriminator = layers(4), Discriminator()
    optimizers = {
        "generator": torch.optim.SGD(generator.parameters(), lr=1e-3),
        "discriminator": torch.optim.SGD(discriminator.parameters(), lr=1e-3),
    }

    def step(x):
        for each in optimizers.values():
            each.zero_grad()
        fake = generator(x)
        loss = discriminator(fake).mean()
        loss.backward()
        optimizers["generator"].step()
        discriminator.zero_grad()
        (-discriminator(x)).mean().backward()
        optimizers["discriminator"].step()
        return {"loss": loss}

    feeds = batches()
    feeds[1]["x"] = discriminator.layers.weight.detach().sign().expand(6, 4) * 100
    modules = {"generator": generator, "discriminator": discriminator}
    return Program(step, modules, optimizers, feeds)


@plant("model/sqrt_3", "aten::sqrt", "sqrt-of-negative", "sqrt of a negative number", module="model", step=0)
def fourth_step_of_a_recurrence():
    """The same line is executed for every word; it fails at one of them."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(4, 4)

        def forward(self, x):
            state = torch.zeros(1, 4)
            for word in x:
                state = self.cell(torch.sqrt(word)[None], state)  # here
            return state

    feeds = [{"x": each["x"].abs()} for each in batches()]
    feeds[0]["x"][3, 1] = -4.0
    return trained(Recurrent(), squares, feeds)


@plant(
    "model/encoder/scale/div_1",
    "aten::div",
    "division-by-zero",
    "0/0",
    module="model/encoder/scale",
    step=1,
    reached="parameter",
)
def second_use_of_a_shared_encoder():
    class Scale(nn.Module):
        def forward(self, x):
            return x / x.abs().amax(-1, keepdim=True)  # here

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.linear = Scale(), nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(self.scale(x))

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def forward(self, x):
            left, right = x.chunk(2)
            return self.encoder(left) - self.encoder(right)

    feeds = batches()
    feeds[1]["x"][4] = 0
    return trained(Siamese(), squares, feeds)


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


@plant(
    "gradients/recompute/model/block/sqrt/div",
    "aten::div",
    "sqrt-gradient-at-zero",
    "gradient of sqrt",
    phase="backward",
    module="model/block",
    step=1,
    reached="gradients",
)
def gradient_of_a_checkpointed_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return torch.sqrt(self.linear(x).square().sum(-1))  # here

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.block = nn.Linear(4, 4, bias=False), Block()

        def forward(self, x):
            return checkpoint(self.block, self.first(x), use_reentrant=True)

    return trained(Deep(), lambda model, x: model(x).mean(), blank_rows(1))


@plant("model/log", "aten::log", "log-of-negative", "negative", module="model", step=1)
def compiled_model():
    """Compiled code runs eagerly while it is watched, so the line is known."""

    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    model = LogFeatures()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][3, 2] = -0.25
    return optimized({"model": model}, optimizer, lambda x: squares(compiled, x), feeds)


@plant(
    "gradients/sqrt/div", "aten::div", "sqrt-gradient-at-zero", "gradient of sqrt", phase="backward", step=1
)
def gradient_that_a_scaler_hides():
    """A scaler skips the step, as it does for overflows; but no smaller scale will ever help."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x):
        optimizer.zero_grad()
        embedded = model(x)
        loss = torch.sqrt((embedded[:3] - embedded[3:]).square().sum(-1)).mean()  # here
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss}

    feeds = batches()
    for each in feeds[1:]:
        each["x"][3] = each["x"][0]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant("log", "aten::log", "log-of-zero", "log of zero", step=1)
def loss_that_a_scaler_hides():
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x):
        optimizer.zero_grad()
        loss = torch.log(x.abs().sum(-1)).mean() * squares(model, x)  # here
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, blank_rows(1))


@plant(
    "optimizer/Adam/foreach_addcdiv_",
    "aten::_foreach_addcdiv_",
    "epsilon-too-small",
    "divides by zero",
    phase="optimizer",
    module="model/0",
)
def adam_over_lists():
    """All parameters in one operation: which of them went bad is known all the same."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0, foreach=True)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "optimizer/AdamW/fused_adamw_",
    "aten::_fused_adamw_",
    "epsilon-too-small",
    "epsilon",
    phase="optimizer",
    module="model/0",
)
def fused_adam():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.AdamW(model.parameters(), eps=0.0, fused=True)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "model/parametrizations/weight/0/weight_norm_interface",
    "aten::_weight_norm_interface",
    "norm-of-zero",
    "zero",
    module="model/parametrizations/weight/0",
)
def weight_norm_of_a_layer_of_zeros():
    """A layer that begins as zero, as the last of a residual block does, has no direction."""
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    model = nn.utils.parametrizations.weight_norm(model)

    def loss(x):
        return squares(model, x)

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, batches())


@plant("model/linalg_slogdet", "aten::_linalg_slogdet", "singular-matrix", "singular", module="model")
def determinant_of_a_singular_matrix():
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixing = nn.Linear(4, 4, bias=False)
            nn.init.ones_(self.mixing.weight)

        def forward(self, x):
            volume = torch.linalg.slogdet(self.mixing.weight).logabsdet  # here
            return self.mixing(x).square().mean() - volume

    return trained(Flow(), lambda model, x: model(x), batches())


# --- programs that end themselves --------------------------------------------------------------------------


@plant("model/log", "aten::log", "log-of-negative", "negative", module="model", step=1)
def program_that_checks_its_loss():
    """The run ends in the middle: what happened up to there is known."""

    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    model = LogFeatures()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = squares(model, x)
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][3, 2] = -0.25
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


# --- infinities that are meant, and then are not --------------------------------------------------------------


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


@plant(
    "gradients/log/div",
    "aten::div",
    "log-gradient-at-zero",
    "gradient",
    phase="backward",
    reached="parameter",
)
def logarithm_clamped_afterwards():
    """clamp() hides −inf forward; backward its 0 is divided by 0."""
    model = layers(1)

    def loss(x):
        probability = torch.sigmoid(model(x)) * (x[:, :1] > 0)
        return -torch.log(probability).clamp(min=-100).mean()  # here

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, batches())


@plant("x", "Placeholder", "bad-input", "came", phase="input", step=1, reached="loss")
def infinite_feature_in_a_batch():
    feeds = batches()
    feeds[1]["x"][0, 0] = INFINITY
    return trained(layers(), lambda model, x: (model(x) * x.sum()).mean(), feeds)


@plant(
    "model/norm/running_var",
    "Variable",
    "bad-parameter",
    "when the step began",
    phase="parameter",
    module="model/norm",
    step=0,
)
def statistics_loaded_bad():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.layers = layers()

        def forward(self, x):
            return self.layers(self.norm(x))

    model = Normed()
    model.norm.running_var[2] = NAN
    model.norm.eval()
    return trained(model, squares, batches())


# --- means, norms and losses of nothing ----------------------------------------------------------------------


@plant("mean", "aten::mean", "mean-of-nothing", "no elements", step=2, reached="loss")
def mean_over_an_empty_selection():
    model = layers(1)

    def loss(x):
        hard = model(x)[x[:, 0] > 0]
        return hard.square().mean()  # here

    feeds = batches(4)
    feeds[2]["x"][:, 0] = -1
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, feeds)


@plant("div_", "aten::div_", "division-by-zero", "0/0", step=0, reached="parameter")
def weights_projected_by_hand():
    """Rows of a weight are kept at length one; one of them is zero."""
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight[1] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(x):
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.weight /= model.weight.norm(dim=1, keepdim=True)  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "gradients/model/0/weight/div", "aten::div", "division-by-zero", "0/0", phase="backward", module="model/0"
)
def gradient_normalised_by_a_hook():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    model[0].weight.register_hook(lambda gradient: gradient / gradient.norm())  # here
    return trained(model, squares, batches())


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
    "optimizer/Adam/model/0/weight/exp_avg",
    "Variable",
    "bad-state",
    "when the step began",
    phase="optimizer",
    module="model/0",
    step=0,
)
def optimizer_state_loaded_bad():
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    squares(model, torch.randn(6, 4)).backward()
    optimizer.step()
    optimizer.state[model[0].weight]["exp_avg"][0, 0] = NAN
    return trained(model, squares, batches(), optimizer)


@plant(
    "gradients/sqrt/div",
    "aten::div",
    "sqrt-gradient-at-zero",
    "gradient of sqrt",
    phase="backward",
    step=1,
)
def program_under_anomaly_detection():
    """PyTorch itself raises in the middle of the backward pass."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        embedded = model(x)
        loss = torch.sqrt((embedded[:3] - embedded[3:]).square().sum(-1)).mean()  # here
        with torch.autograd.detect_anomaly(check_nan=True):
            loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = batches()
    feeds[1]["x"][3] = feeds[1]["x"][0]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)
