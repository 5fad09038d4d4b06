"""Training programs with a known fault in them, and healthy ones that look as if they had.

A case is a function that builds a model and returns how to train it. The line that is at fault ends in `# here`.
`train` runs a case watched, in the way a user would, and returns the session directory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tensortap as tt


@dataclass
class Program:
    """What a case returns.

    Attributes:
        step: the step function.
        modules: by name.
        optimizers: by name.
        feeds: what each run is fed; one dict per run.
    """

    step: Callable
    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    feeds: list[dict] = field(default_factory=list)


@dataclass
class Plant:
    """A case and the answer it must get; `node` None for a healthy one."""

    build: Callable[[], Program]
    node: str | None = None
    kind: str | None = None
    phase: str = "forward"
    module: str | None = None
    run: int = 0
    op_type: str | None = None

    @property
    def name(self) -> str:
        return self.build.__name__

    @property
    def line(self) -> int | None:
        """The line that ends in `# here`."""
        lines, start = inspect.getsourcelines(self.build)
        return next((start + i for i, text in enumerate(lines) if text.rstrip().endswith("# here")), None)


PLANTS: list[Plant] = []
HEALTHY: list[Plant] = []


def plant(node, kind, **answer):
    def add(build):
        PLANTS.append(Plant(build, node, kind, **answer))
        return build

    return add


def healthy(build):
    HEALTHY.append(Plant(build))
    return build


def watch(debug_ops):
    return lambda fetches, feeds: tt.WatchOptions(list(debug_ops))


def train(case: Plant, root: Path, debug_ops=("DebugNumericSummary",)) -> Path:
    """Run a case watched."""
    torch.manual_seed(0)
    program = case.build()
    session = tt.torch.Session(program.step, modules=program.modules, optimizers=program.optimizers)
    with tt.DumpingDebugWrapperSession(session, root, watch_fn=watch(debug_ops)) as wrapped:
        for feeds in program.feeds:
            wrapped.run(None, feeds)
    return Path(root)


def trained(model, forward, feeds, optimizer=None, name="model"):
    """A program that trains a model on a loss in the usual way."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)

    def step(**inputs):
        optimizer.zero_grad()
        loss = forward(model, **inputs)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    # The session reads the names of the inputs from the signature.
    names = list(feeds[0])
    step.__signature__ = inspect.Signature(
        [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in names]
    )
    return Program(step, {name: model}, {"optimizer": optimizer}, feeds)


class Net(nn.Module):
    """Two layers with a function between them."""

    def __init__(self, between=torch.tanh, width=8):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.last = nn.Linear(width, 2)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def squares(model, x):
    return model(x).pow(2).mean()


def batches(count=3, rows=6, width=4):
    torch.manual_seed(1)
    return [{"x": torch.randn(rows, width)} for _ in range(count)]


# --- forward


@plant("model/sqrt", "sqrt-of-negative", module="model")
def sqrt_of_negative():
    def between(h):
        return torch.sqrt(h)  # here

    return trained(Net(between), squares, batches())


@plant("model/log", "log-of-zero", module="model")
def log_of_zero():
    def between(h):
        return torch.log(torch.relu(h))  # here

    return trained(Net(between), squares, batches())


@plant("model/add", "overwritten", module="model")
def memory_written_through_a_view():
    def between(h):
        shift = torch.zeros(h.shape[-1])
        shift.view(-1)[0] = float("inf")
        return h + shift  # here

    return trained(Net(between), squares, batches())


@plant("model/div", "division-by-zero", module="model")
def division_by_zero():
    def between(h):
        return h / (h - h).sum(-1, keepdim=True)  # here

    return trained(Net(between), squares, batches())


@plant("model/exp", "exp-overflow", module="model")
def infinity_only():
    def between(h):
        return torch.exp(h.abs() * 1000)  # here

    return trained(Net(between), lambda model, x: model(x).abs().mean(), batches())


@plant("model/inner/acos", "acos-out-of-range", module="model/inner")
def acos_in_a_submodule():
    class Angle(nn.Module):
        def forward(self, h):
            return torch.acos(h * 3)  # here

    class Outer(Net):
        def __init__(self):
            super().__init__()
            self.inner = Angle()

        def forward(self, x):
            return self.last(self.inner(self.first(x)))

    return trained(Outer(), squares, batches())


@plant("model/pow", "power-of-negative", module="model")
def power_of_negative():
    def between(h):
        return torch.pow(h, 1.5)  # here

    return trained(Net(between), squares, batches())


@plant("model/to_copy", "cast-overflow", module="model")
def float16_overflow():
    def between(h):
        big = h * 1e6
        return big.half().float()  # here

    return trained(Net(between), squares, batches())


@plant("model/mul_1", "overflow", module="model")
def bfloat16_overflow():
    def between(h):
        big = (h * 1e30).bfloat16()
        return (big * big).float()  # here

    return trained(Net(between), squares, batches())


@plant("model/log_", "log-of-negative", module="model")
def in_place():
    def between(h):
        h = h * 1.0
        return h.log_()  # here

    return trained(Net(between), squares, batches())


@plant("model/softmax", "fully-masked-row", module="model")
def fully_masked_attention():
    return trained(_masked_attention(rows_masked=2), squares, batches())


def _masked_attention(rows_masked):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(4, 8), nn.Linear(4, 8)

        def forward(self, x):
            scores = self.query(x) @ self.key(x).T
            mask = torch.ones(len(x), len(x)).triu(1).bool()
            mask[:rows_masked] = True
            return scores.masked_fill(mask, float("-inf")).softmax(-1) @ x

    return Attention()


# --- backward only


@plant("gradients/model/sqrt/div", "sqrt-gradient-at-zero", phase="backward", module="model")
def where_and_sqrt_of_zero():
    def between(h):
        h = h * (h > 0)
        root = torch.sqrt(h)  # here
        return torch.where(h > 0, root, torch.zeros_like(h))

    return trained(Net(between), squares, batches())


@plant("gradients/model/pow/pow", "power-gradient-at-zero", phase="backward", module="model")
def root_written_as_a_power():
    def between(h):
        return (h * (h > 0)) ** 0.5  # here

    return trained(Net(between), squares, batches())


# --- optimizer


@plant(
    "optimizer/Adam/model/first/weight/addcdiv_", "epsilon-too-small", phase="optimizer", module="model/first"
)
def optimizer_without_epsilon():
    model = Net(lambda h: h * 0)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0)
    return trained(model, squares, batches(), optimizer)  # the step is a line of `trained`


# --- over runs


@plant("x", "bad-input", phase="input", run=2)
def bad_batch():
    feeds = batches(4)
    feeds[2]["x"][3, 1] = float("nan")
    return trained(Net(), squares, feeds)


@plant("model/last/weight", "bad-parameter", phase="parameter", module="model/last")
def bad_checkpoint():
    model = Net()
    state = model.state_dict()
    state["last.weight"][1, 3] = float("inf")
    model.load_state_dict(state)
    return trained(model, squares, batches())


@plant("model/last/bias", "bad-parameter", phase="parameter", module="model/last")
def bias_that_looks_like_a_mask():
    model = Net()
    with torch.no_grad():
        model.last.bias.copy_(torch.tensor([0.0, float("-inf")]))
    return trained(model, squares, batches())


@plant(None, "overflow", run=None)
def exploding_learning_rate():
    model = Net(lambda h: h)
    return trained(model, squares, batches(40), torch.optim.SGD(model.parameters(), lr=50.0))


@plant("second/log", "log-of-negative", module="second")
def second_model_in_the_same_step():
    first, second = Net(), Net(torch.log)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = first(x).pow(2).mean() + second(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return Program(step, {"first": first, "second": second}, {"optimizer": optimizer}, batches())


@plant("model/log", "log-of-negative", module="model")
def recomputed_from_a_checkpoint():
    def between(h):
        return checkpoint(inner, h, use_reentrant=False)

    def inner(h):
        return torch.log(h)  # here

    return trained(Net(between), squares, batches())


@plant("gradients/model/mul/div", "division-by-zero", phase="backward", module="model")
def custom_function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient / (x - x)  # here

    return trained(Net(Twice.apply), squares, batches())


@plant("model/sqrt", "sqrt-of-negative", module="model")
def tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.there, self.back = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.back.weight = self.there.weight

        def forward(self, x):
            return torch.sqrt(self.back(self.there(x)))  # here

    return trained(Tied(), squares, batches())


@plant("div_2", "division-by-zero")
def gradient_accumulation():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        for part in range(3):
            y = model(x)
            if part == 2:
                y = y / (y - y)  # here
            (y.pow(2).mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant("nll_loss_forward", "mean-of-nothing")
def every_target_ignored():
    def loss(model, x):
        return F.cross_entropy(model(x), torch.full((len(x),), -100))  # here

    return trained(Net(), loss, batches())


@plant("nll_loss_forward", "masked-target")
def target_that_is_masked():
    def loss(model, x):
        logits = model(x).masked_fill(torch.tensor([True, False]), float("-inf"))
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))  # here

    return trained(Net(), loss, batches())


@plant("model/mul", "overflow", module="model")
def float16_model():
    def between(h):
        return h * 300  # here

    model = Net(between).half()
    return trained(model, lambda model, x: model(x.half() * 500).pow(2).mean(), batches())


@plant("optimizer/Adam/foreach_addcdiv_", "epsilon-too-small", phase="optimizer", module="model/first")
def optimizer_over_lists():
    model = Net(lambda h: h * 0)
    return trained(model, squares, batches(), torch.optim.Adam(model.parameters(), eps=0.0, foreach=True))


@plant("optimizer/Adam/fused_adam_", "epsilon-too-small", phase="optimizer", module="model/first")
def fused_optimizer():
    model = Net(lambda h: h * 0)
    return trained(model, squares, batches(), torch.optim.Adam(model.parameters(), eps=0.0, fused=True))


# --- healthy, though there are infinities or NaN in them


@healthy
def masked_attention():
    return trained(_masked_attention(rows_masked=0), squares, batches())


@healthy
def added_mask_in_a_buffer():
    class Attention(_masked_attention(0).__class__):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))

        def forward(self, x):
            return (self.query(x) @ self.key(x).T + self.mask).softmax(-1) @ x

    return trained(Attention(), squares, batches())


@healthy
def library_attention():
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    feeds = [{"x": torch.randn(2, 5, 8)} for _ in range(2)]
    return trained(model, lambda model, x: model(x, src_mask=mask, is_causal=False).pow(2).mean(), feeds)


@healthy
def logarithmic_buckets():
    """As relative positions are made: log(0) is −inf, and becomes an integer that where() throws away."""

    class Buckets(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Embedding(8, 1)

        def forward(self, x):
            distance = torch.arange(len(x))
            large = (torch.log(distance.float()) * 2).clamp(max=7).to(torch.long)
            bucket = torch.where(distance < 4, distance, large)
            return x * self.bias(bucket)

    return trained(Buckets(), squares, batches())


@healthy
def nan_thrown_away():
    """A row without anything is NaN after the softmax and filled with zeros before it is used."""

    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            with torch.no_grad():
                weights = torch.full((len(x), len(x)), float("-inf")).softmax(-1)
                weights = weights.masked_fill(torch.ones(len(x), len(x)).bool(), 0.0)
            return self.out(weights @ x)

    return trained(Filled(), squares, batches())


@healthy
def memory_that_was_never_written():
    class Buffered(Net):
        def forward(self, x):
            h = self.first(x)
            buffer = torch.empty_like(h)
            buffer[:3] = h[:3]
            buffer[3:] = h[3:] * 2
            return self.last(buffer)

    return trained(Buffered(), squares, batches())
