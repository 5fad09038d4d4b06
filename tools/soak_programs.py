"""Random small training programs as source text, for tools/soak.py: the same seed makes the same program.

A program is a model, a way to train it, a few twists and an ending, each drawn from a table below. What it prints is
a digest of every bit of its results and of the random generators, so that two executions can be compared. A model
defines `model` and `loss_of(i)`; a way to train uses them in a loop; a twist adds statements before it, in it and
after it. To add a kind of program, add a function to one of the tables.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["PRELUDE", "Drawn", "draw_file"]

PRELUDE = '''\
import atexit, collections, contextlib, copy, gc, hashlib, io, os, random, signal, subprocess, sys, tempfile, threading
import time, warnings, weakref

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import checkpoint, data
from torch.utils._python_dispatch import TorchDispatchMode

torch.set_num_threads(1)


def flat(thing):
    """Every tensor and number in nested lists and dicts, in order."""
    if isinstance(thing, dict):
        for key in thing:
            yield str(key)
            yield from flat(thing[key])
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from flat(part)
    else:
        yield thing


def show(name, *things):
    """Print every bit of these, and of all random generators, as one digest."""
    digest, finite = hashlib.sha256(), True
    for thing in flat(things):
        if isinstance(thing, torch.Tensor):
            thing = thing.detach().as_subclass(torch.Tensor)
            thing = thing.dequantize() if thing.is_quantized else thing
            thing = thing.to_dense() if thing.layout != torch.strided else thing
            finite = finite and bool(thing.isfinite().all())
            digest.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
            digest.update(thing.contiguous().reshape(-1).resolve_conj().resolve_neg().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(thing).encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr(random.getstate()).encode() + np.random.get_state()[1].tobytes())
    print(f"{name} {digest.hexdigest()[:24]} finite={finite}", flush=True)


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def attempt(program):
    """Execute one of several programs; what it raises is part of what it does."""
    try:
        program()
    except Exception as error:
        show(f"{program.__name__} raised {error!r:.300}")


def parameters_of(names):
    """Parameters of all modules among some local names."""
    modules = [names[name] for name in sorted(names) if isinstance(names[name], nn.Module)]
    return [p for module in modules for p in module.parameters()]


def the_program_is_over():
    """Leave a note of the time: what is used after it is not the program's."""
    if "SOAK_CLOCK" in os.environ:
        with open(os.environ["SOAK_CLOCK"], "w") as clock:
            clock.write(f"{time.monotonic()} {time.process_time()}")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.tanh()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.tanh() + x * (1 - x.tanh() ** 2))


class Named(torch.Tensor):
    """A subclass that only adds a name."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A wrapper around another tensor, which does all the work."""

    @staticmethod
    def __new__(cls, inner):
        like = {"dtype": inner.dtype, "requires_grad": inner.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **like)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        unwrap = lambda a: a.inner if isinstance(a, Wrapped) else a
        wrap = lambda a: Wrapped(a) if isinstance(a, torch.Tensor) else a
        tree = torch.utils._pytree
        return tree.tree_map(wrap, func(*tree.tree_map(unwrap, args), **tree.tree_map(unwrap, kwargs or {})))


class Counting(TorchDispatchMode):
    """A mode of the program's own."""

    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class FunctionCounting(torch.overrides.TorchFunctionMode):
    """The same on the level of functions."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@torch.jit.script
def scripted_activation(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = torch.sigmoid(x) * x + 0.1
    return x
'''

Draw = random.Random
Part = TypeVar("Part", bound=Callable[..., object])


@dataclass
class Twist:
    """Statements around and in the loop.

    Attributes:
        before, inside, after: where they stand.
        around_loss: a context manager for the computation of the loss.
    """

    before: str = ""
    inside: str = ""
    after: str = ""
    around_loss: str = ""


@dataclass
class Drawn:
    """One file of programs.

    Attributes:
        source: its text.
        parts: what was drawn, for people.
        expects: `good`, or `bad` if a bad value was planted.
        planted_line: number of the line that makes it, if the answer must name that line.
    """

    source: str
    parts: list[str] = field(default_factory=list)
    expects: str = "good"
    planted_line: int | None = None


MODELS: dict[str, Callable[[Draw], str]] = {}
TRAINING: dict[str, Callable[[Draw], str]] = {}
WHOLE: dict[str, Callable[[Draw], str]] = {}
TWISTS: dict[str, Callable[[Draw], Twist]] = {}
ENDINGS: dict[str, str] = {}


def _in(table: dict[str, Part]) -> Callable[[Part], Part]:
    """Registers a function under its own name."""

    def register(function: Part) -> Part:
        table[function.__name__] = function
        return function

    return register


# --- models: `model`, and a loss for the i-th batch


def _labelled(features: str, classes: int = 3, batch: int = 6) -> str:
    """A loss for models from a tensor to logits."""
    return f"""
def loss_of(i):
    g = torch.Generator().manual_seed(i)
    x = torch.randn({batch}, {features}, generator=g)
    y = torch.randint(0, {classes}, ({batch},), generator=g)
    return F.cross_entropy(model(prepare(x)), y)
"""


@_in(MODELS)
def mlp(draw: Draw) -> str:
    act = draw.choice(
        ["ReLU", "GELU", "Tanh", "SiLU", "ELU", "Softplus", "LeakyReLU", "Hardswish", "Mish", "PReLU"]
    )
    width = draw.choice([4, 8, 33])
    norm = draw.choice(
        ["nn.Identity()", f"nn.LayerNorm({width})", f"nn.BatchNorm1d({width})", "nn.Dropout(0.3)"]
    )
    return (
        f"model = nn.Sequential(nn.Linear(8, {width}), {norm}, nn.{act}(), nn.Linear({width}, 3))"
        + _labelled("8")
    )


@_in(MODELS)
def conv(draw: Draw) -> str:
    groups = draw.choice([1, 2])
    pool = draw.choice(["nn.MaxPool2d(2)", "nn.AvgPool2d(2)", "nn.AdaptiveAvgPool2d(4)"])
    norm = draw.choice(["nn.BatchNorm2d(4)", "nn.GroupNorm(2, 4)", "nn.InstanceNorm2d(4)"])
    last = draw.choice([".to(memory_format=torch.channels_last)", ""])
    return (
        f"model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups={groups}), {norm}, nn.ReLU(), {pool},"
        f" nn.Flatten(), nn.Linear(64, 3)){last}" + _labelled("2, 8, 8")
    )


@_in(MODELS)
def recurrent(draw: Draw) -> str:
    kind = draw.choice(["LSTM", "GRU", "RNN"])
    layers, both_ways = draw.choice([1, 2]), draw.choice([True, False])
    return f"""
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.{kind}(4, 6, num_layers={layers}, batch_first=True, bidirectional={both_ways})
        self.head = nn.LazyLinear(3)
    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])
model = Recurrent()
model(torch.zeros(1, 2, 4))
""" + _labelled("5, 4")


@_in(MODELS)
def cell_loop(draw: Draw) -> str:
    kind = draw.choice(["LSTMCell", "GRUCell"])
    state = "(h, c)" if kind == "LSTMCell" else "h"
    return f"""
class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.{kind}(1, 5), nn.Linear(5, 1)
    def forward(self, x):
        h = c = x.new_zeros(x.size(0), 5)
        outs = []
        for t in range(x.size(1)):
            {state} = self.cell(x[:, t : t + 1], {state})
            outs.append(self.head(h))
        return torch.cat(outs, 1)
model = Cells()
def loss_of(i):
    x = torch.sin(torch.arange({draw.choice([5, 25])} + i % 3).float() / 3 + i).expand(3, -1)
    return F.mse_loss(model(prepare(x)[:, :-1]), x[:, 1:])
"""


@_in(MODELS)
def attention(draw: Draw) -> str:
    body = draw.choice(
        [
            "nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)",
            "nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)",
        ]
    )
    mask = draw.choice(["None", "nn.Transformer.generate_square_subsequent_mask(t.size(1))"])
    return f"""
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(20, 8), {body}, nn.Linear(8, 20)
    def forward(self, t):
        return self.head(self.body(self.embedding(t), src_mask={mask}))
model = Words()
def loss_of(i):
    t = torch.randint(0, 20, (2, 6 + i % 2), generator=torch.Generator().manual_seed(i))
    return F.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())
"""


@_in(MODELS)
def own_attention(draw: Draw) -> str:
    how = draw.choice(
        [
            "w = (q @ k.mT / 2.8).masked_fill(~m, float('-inf')).softmax(-1) @ v",
            "w = F.scaled_dot_product_attention(q, k, v, attn_mask=m)",
            "w = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            "w = torch.einsum('bij,bjd->bid', (torch.einsum('bid,bjd->bij', q, k) + m.float().log()).softmax(-1), v)",
        ]
    )
    return f"""
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        m = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        {how}
        return self.head(w).mean(1)
model = Attention()
""" + _labelled("5, 8")


@_in(MODELS)
def embedding(draw: Draw) -> str:
    bag = draw.choice(["nn.EmbeddingBag(30, 6, mode='mean')", "nn.Embedding(30, 6, padding_idx=0)"])
    tied = draw.choice([True, False])
    return f"""
class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = {bag}, nn.Linear(6, 30, bias=False)
        if {tied}:
            self.head.weight = self.table.weight
    def forward(self, t):
        h = self.table(t)
        return self.head(h if h.dim() == 2 else h.mean(1))
model = Bag()
def loss_of(i):
    t = torch.randint(1, 30, (5, 4), generator=torch.Generator().manual_seed(i))
    return F.cross_entropy(model(t), t[:, 0], label_smoothing=0.1)
"""


@_in(MODELS)
def autoencoder(draw: Draw) -> str:
    return """
class Auto(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 4, 3, stride=2, padding=1), nn.ReLU())
        self.decoder = nn.ConvTranspose1d(4, 1, 4, stride=2, padding=1)
    def forward(self, x):
        return self.decoder(self.encoder(x))
model = Auto()
def loss_of(i):
    x = torch.rand(3, 1, 12, generator=torch.Generator().manual_seed(i))
    return F.binary_cross_entropy_with_logits(model(prepare(x)), x) + F.smooth_l1_loss(model(x), x)
"""


@_in(MODELS)
def vae(draw: Draw) -> str:
    return """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 6), nn.Linear(3, 8)
    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (logvar / 2).exp()
        return self.decoder(z), -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1).mean()
model = VAE()
def loss_of(i):
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(i))
    out, kl = model(prepare(x))
    q = torch.distributions.Normal(out, 1.0)
    return -q.log_prob(x).mean() + 0.1 * kl
"""


@_in(MODELS)
def graph_network(draw: Draw) -> str:
    layout = draw.choice([".to_sparse_csr()", ".to_sparse()", ".to_sparse().coalesce()"])
    return f"""
class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
        self.edges = (torch.rand(7, 7) > 0.6).float(){layout}
    def forward(self, x):
        h = torch.sparse.mm(self.edges, self.first(x)).relu()
        h = h.index_add(0, torch.tensor([0, 1, 1]), h[[2, 3, 4]])
        return self.second(h.scatter_reduce(0, torch.zeros(7, 6, dtype=torch.long), h, "amax"))
warnings.filterwarnings("ignore", message="Sparse CSR")
model = GNN()
def loss_of(i):
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(i))
    return F.cross_entropy(model(x), torch.arange(7) % 2)
"""


@_in(MODELS)
def parametrized(draw: Draw) -> str:
    how = draw.choice(["weight_norm", "spectral_norm", "orthogonal"])
    return (
        f"model = nn.Sequential(torch.nn.utils.parametrizations.{how}(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 3))"
        + _labelled("8")
    )


@_in(MODELS)
def spectral(draw: Draw) -> str:
    return """
class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(5, dtype=torch.cfloat) * 0.1), nn.Linear(8, 3)
    def forward(self, x):
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * (1 + self.weight), n=8))
model = Fourier()
""" + _labelled("8")


@_in(MODELS)
def checkpointed(draw: Draw) -> str:
    return f"""
class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.2)) for _ in range(3))
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        x = x.clone().requires_grad_()
        for block in self.blocks:
            x = checkpoint.checkpoint(block, x, use_reentrant={draw.choice([True, False])})
        return self.head(x)
model = Blocks()
""" + _labelled("8")


@_in(MODELS)
def custom_function(draw: Draw) -> str:
    call = draw.choice(["Doubled.apply(h)", "scripted_activation(h, 2)", "Doubled.apply(Doubled.apply(h))"])
    return f"""
class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = self.a(x)
        return self.b({call})
model = Custom()
""" + _labelled("8")


@_in(MODELS)
def experts(draw: Draw) -> str:
    return """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 3) for _ in range(3))
    def forward(self, x):
        scores, which = self.gate(x).softmax(-1).topk(1)
        out = x.new_zeros(x.size(0), 3)
        for k, expert in enumerate(self.experts):
            rows = (which[:, 0] == k).nonzero().squeeze(1)
            if len(rows):
                out[rows] = expert(x[rows]) * scores[rows]
        return out
model = Experts()
""" + _labelled("8", batch=9)


@_in(MODELS)
def in_place(draw: Draw) -> str:
    return """
class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        h = self.a(x)
        h = h.clone()
        h[:, :4].mul_(0.5).add_(1)
        h.view(-1, 2, 4)[:, 1].relu_()
        h[h > 1.5] = 1.5
        h.t()[0].copy_(h[:, 1].detach())
        return self.b(F.relu(h, inplace=True))
model = InPlace()
""" + _labelled("8")


@_in(MODELS)
def functional_transforms(draw: Draw) -> str:
    how = draw.choice(
        [
            "torch.func.vmap(lambda a, b: (a * b).sum().tanh())(x, x)",
            "torch.func.vmap(torch.func.grad(lambda a: (a**2).sum().sin()))(x).sum(1)",
            "torch.func.jvp(lambda a: a.sin().sum(1), (x,), (x.detach(),))[1]",
        ]
    )
    return f"""
class Transformed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(9, 3)
    def forward(self, x):
        x = self.a(x)
        return self.b(torch.cat([x, {how}[:, None]], 1))
model = Transformed()
""" + _labelled("8")


@_in(MODELS)
def gradient_penalty(draw: Draw) -> str:
    return """
model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
def loss_of(i):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i)).requires_grad_()
    out = model(x)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out.square().mean() + (grad.square().sum(1) - 1).square().mean()
"""


@_in(MODELS)
def ragged(draw: Draw) -> str:
    return """
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
warnings.filterwarnings("ignore", message=".*nested tensor.*")
def loss_of(i):
    g = torch.Generator().manual_seed(i)
    parts = [torch.randn(n, 4, generator=g) for n in (2, 3 + i % 2, 1)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return model(nested).values().square().mean()
"""


@_in(MODELS)
def subclassed(draw: Draw) -> str:
    kind = draw.choice(["Named", "Wrapped"])
    made = "x.as_subclass(Named)" if kind == "Named" else "Wrapped(x)"
    back = ".as_subclass(torch.Tensor)" if kind == "Named" else ""
    return f"""
model = nn.Linear(4, 2)
def loss_of(i):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i))
    odd = ({made} * 2).sin()
    odd = odd.inner if isinstance(odd, Wrapped) else odd{back}
    return model(odd).square().mean()
"""


@_in(MODELS)
def several_inputs(draw: Draw) -> str:
    return """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Bilinear(4, 4, 6)})
        self.scale = nn.ParameterList([nn.Parameter(torch.ones(()))])
    def forward(self, x, *, other=None, flag=False):
        a = self.towers["a"](x)
        b = self.towers["b"](x, other if other is not None else x)
        return {"cos": F.cosine_similarity(a, b) * self.scale[0], "all": [a, (b, flag)]}
model = Both()
def loss_of(i):
    g = torch.Generator().manual_seed(i)
    x = torch.randn(5, 4, generator=g)
    out = model(prepare(x), other=torch.rand(5, 4, generator=g) if i % 2 else None, flag=True)
    return (1 - out["cos"]).mean() + 0.01 * out["all"][0].pow(2).mean()
"""


# --- ways to train


def _optimizer(draw: Draw, parameters: str = "model.parameters()") -> str:
    shared = draw.choice(["", ", foreach=True", ", foreach=False", ", maximize=False", ", weight_decay=0.01"])
    fused = draw.choice([", fused=True", "", shared])
    return draw.choice(
        [
            f"torch.optim.SGD({parameters}, lr=0.05{fused})",
            f"torch.optim.SGD({parameters}, lr=0.05, momentum=0.9, nesterov=True{fused})",
            f"torch.optim.Adam({parameters}, lr=1e-3{fused})",
            f"torch.optim.Adam({parameters}, lr=torch.tensor(1e-3), amsgrad=True)",
            f"torch.optim.AdamW({parameters}, lr=1e-3{fused})",
            f"torch.optim.Adamax({parameters}, lr=1e-3{shared})",
            f"torch.optim.NAdam({parameters}, lr=1e-3{shared})",
            f"torch.optim.RAdam({parameters}, lr=1e-3{shared})",
            f"torch.optim.RMSprop({parameters}, lr=1e-3, centered={draw.choice([True, False])}{shared})",
            f"torch.optim.Rprop({parameters}, lr=1e-3)",
            f"torch.optim.Adagrad({parameters}, lr=1e-2{shared})",
            f"torch.optim.Adadelta({parameters}, lr=0.5{shared})",
            f"torch.optim.ASGD({parameters}, lr=1e-2{shared})",
            f"torch.optim.Adafactor({parameters}, lr=1e-2)",
        ]
    )


def _schedule(draw: Draw) -> tuple[str, str]:
    chosen = draw.choice(
        [
            "",
            "",
            "StepLR(optimizer, 2)",
            "CosineAnnealingLR(optimizer, 5)",
            "OneCycleLR(optimizer, 0.01, total_steps=400)",
            "LambdaLR(optimizer, lambda n: 1 / (n + 1))",
            "LinearLR(optimizer)",
            "ReduceLROnPlateau(optimizer)",
        ]
    )
    if not chosen or "OneCycle" in chosen:
        return "", ""
    plateau = "float(loss)" if "Plateau" in chosen else ""
    return f"schedule = torch.optim.lr_scheduler.{chosen}", f"    schedule.step({plateau})"


def _clip(draw: Draw) -> str:
    return draw.choice(
        [
            "",
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            "    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)",
        ]
    )


@_in(TRAINING)
def plain(draw: Draw) -> str:
    schedule, tick = _schedule(draw)
    return f"""
optimizer = {_optimizer(draw)}
{schedule}
for i in range({draw.choice([1, 3, 6, 30])}):
    #INSIDE
    optimizer.zero_grad(set_to_none={draw.choice([True, False])})
    #LOSS
    loss.backward()
{_clip(draw)}
    optimizer.step()
{tick}
"""


@_in(TRAINING)
def accumulated(draw: Draw) -> str:
    return f"""
optimizer = {_optimizer(draw)}
for i in range(8):
    #INSIDE
    #LOSS
    (loss / 4).backward()
    if i % 4 == 3:
{textwrap.indent(_clip(draw), "    ")}
        optimizer.step()
        optimizer.zero_grad()
"""


@_in(TRAINING)
def closures(draw: Draw) -> str:
    made = draw.choice(
        [
            "torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)",
            "torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, line_search_fn='strong_wolfe')",
            _optimizer(draw),
        ]
    )
    return f"""
optimizer = {made}
for i in range(3):
    #INSIDE
    def closure():
        optimizer.zero_grad()
        #LOSS
        loss.backward()
        return loss
    loss = optimizer.step(closure)
"""


@_in(TRAINING)
def scaled(draw: Draw) -> str:
    return f"""
optimizer = {_optimizer(draw).replace(", fused=True", "")}
scaler = torch.amp.GradScaler("cpu", init_scale={draw.choice([4.0, 1024.0])}, growth_interval=2)
for i in range(5):
    #INSIDE
    optimizer.zero_grad()
    #LOSS
    scaler.scale(loss).backward()
    if {draw.choice([True, False])}:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


@_in(TRAINING)
def in_hooks(draw: Draw) -> str:
    return f"""
optimizers = {{p: {_optimizer(draw, "[p]")} for p in model.parameters()}}
def step_of(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_of)
for i in range(4):
    #INSIDE
    #LOSS
    loss.backward()
"""


@_in(TRAINING)
def by_hand(draw: Draw) -> str:
    return """
for i in range(4):
    #INSIDE
    #LOSS
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads):
            if g is not None:
                p -= 0.05 * g
"""


@_in(TRAINING)
def averaged(draw: Draw) -> str:
    return f"""
optimizer = {_optimizer(draw)}
ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
for i in range(5):
    #INSIDE
    optimizer.zero_grad()
    #LOSS
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
results.append(ema.state_dict())
"""


@_in(TRAINING)
def two_groups(draw: Draw) -> str:
    return f"""
parameters = list(model.parameters())
first = {_optimizer(draw, "parameters[:1]")}
second = {_optimizer(draw, "[{'params': parameters[-1:], 'lr': 0.01}, {'params': parameters[1:-1]}]")}
for i in range(4):
    #INSIDE
    first.zero_grad()
    second.zero_grad()
    #LOSS
    loss.backward()
    first.step()
    if i % 2:
        second.step()
"""


@_in(TRAINING)
def sharpness_aware(draw: Draw) -> str:
    return f"""
optimizer = {_optimizer(draw)}
for i in range(3):
    #INSIDE
    #LOSS
    loss.backward()
    with torch.no_grad():
        moved = [(p, 0.01 * p.grad / (p.grad.abs().max() + 1e-6)) for p in model.parameters() if p.grad is not None]
        for p, by in moved:
            p.add_(by)
    optimizer.zero_grad()
    loss_of(i).backward()
    with torch.no_grad():
        torch._foreach_sub_([p for p, _ in moved], [by for _, by in moved])
    optimizer.step()
    optimizer.zero_grad()
"""


@_in(TRAINING)
def as_generator(draw: Draw) -> str:
    return f"""
optimizer = {_optimizer(draw)}
def steps():
    i = 0
    while True:
        #INSIDE
        #LOSS
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        i += 1
        yield loss
endless = steps()
for _ in range(4):
    next(endless)
"""


# --- programs with a loop of their own


@_in(WHOLE)
def gan(draw: Draw) -> str:
    return f"""
generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
first = {_optimizer(draw, "generator.parameters()")}
second = {_optimizer(draw, "critic.parameters()")}
for i in range(5):
    real = torch.randn(6, 2)
    fake = generator(torch.randn(6, 3))
    second.zero_grad()
    (F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()).backward()
    second.step()
    first.zero_grad()
    F.softplus(-critic(fake)).mean().backward()
    first.step()
results += [generator.state_dict(), critic.state_dict()]
"""


@_in(WHOLE)
def rollout(draw: Draw) -> str:
    return f"""
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = {_optimizer(draw, "policy.parameters()")}
for episode in range(3):
    state, logs, rewards = torch.zeros(4), [], []
    with torch.{draw.choice(["no_grad", "inference_mode"])}():
        actions = [int(torch.distributions.Categorical(logits=policy(torch.randn(4))).sample()) for _ in range(20)]
    for action in actions:
        state = (state + 0.1 * torch.randn(4)).clamp(-1, 1)
        logs.append(torch.distributions.Categorical(logits=policy(state)).log_prob(torch.tensor(action)))
        rewards.append(float(state[action]))
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(logs) * (returns - returns.mean()) / (returns.std() + 1e-6)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
results.append(policy.state_dict())
"""


@_in(WHOLE)
def sparse_embedding(draw: Draw) -> str:
    made = draw.choice(
        [
            "SparseAdam(table.parameters())",
            "SGD(table.parameters(), lr=0.1)",
            "Adagrad(table.parameters(), lr=0.1)",
        ]
    )
    return f"""
table = nn.Embedding(50, 4, sparse=True)
optimizer = torch.optim.{made}
for i in range(5):
    optimizer.zero_grad()
    t = torch.randint(0, 50, (4, 3))
    loss = (table(t) - 1).square().mean()
    loss.backward()
    optimizer.step()
results.append(table.state_dict())
"""


@_in(WHOLE)
def without_models(draw: Draw) -> str:
    return f"""
w = torch.randn(5, 3, requires_grad=True)
b = torch.zeros(3, requires_grad=True)
optimizer = {_optimizer(draw, "[w, b]")}
for i in range(6):
    x = torch.randn(4, 5)
    loss = torch.logsumexp(x @ w + b, 1).mean() + torch.linalg.norm(w) * 0.1 + torch.linalg.svdvals(w).sum() * 0.01
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
results += [w, b]
"""


@_in(WHOLE)
def quantised(draw: Draw) -> str:
    return """
warnings.filterwarnings("ignore")
q = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)
results += [q.int_repr(), torch.fake_quantize_per_tensor_affine(torch.randn(3, 3), 0.1, 0, -128, 127)]
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(3):
    w = torch.fake_quantize_per_tensor_affine(model.weight, 0.05, 0, -128, 127)
    loss = F.linear(q.dequantize(), w, model.bias).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
results.append(model.state_dict())
"""


@_in(WHOLE)
def odd_tensors(draw: Draw) -> str:
    return """
warnings.filterwarnings("ignore")
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(3):
    x = torch.randn(4, 4)
    m = torch.masked.masked_tensor(x, x > 0)
    pieces = [
        torch.masked.sum(x, 1, mask=x > 0), m.sum().get_data(), x.to_sparse().sum().to_dense(),
        torch.empty(0, 4).sum(0), x.half().float(), x.to(torch.float64).float(), x.bfloat16().float(),
        x.expand(2, 4, 4)[0], torch.view_as_real(torch.complex(x, x).conj().resolve_conj())[..., 1],
        x.T[::2].reshape(-1),
        x.to_sparse_csr().to_dense(), torch.as_strided(x, (2, 2), (1, 2)), x.unfold(0, 2, 1).reshape(-1),
        torch.from_numpy(np.ones((4, 4), "f4")), x.to_mkldnn().to_dense(), torch.tensor(3.0).expand(4),
        torch.bucketize(x, torch.linspace(-2, 2, 5)).float(), x.to(torch.float8_e4m3fn).float(),
    ]
    loss = model(x).square().mean() + sum(model(x.roll(k)).mean() * p.sum() * 1e-3 for k, p in enumerate(pieces))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
results.append(model.state_dict())
"""


@_in(WHOLE)
def meta_learning(draw: Draw) -> str:
    return f"""
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = {_optimizer(draw)}
for i in range(3):
    x = torch.randn(5, 2)
    weights = dict(model.named_parameters())
    inner = torch.func.functional_call(model, weights, (x,)).square().mean()
    grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
    fast = {{k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads)}}
    loss = (torch.func.functional_call(model, fast, (x,)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
results.append(model.state_dict())
"""


@_in(WHOLE)
def ensemble(draw: Draw) -> str:
    return """
models = [nn.Linear(3, 2) for _ in range(3)]
params, buffers = torch.func.stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
def one(p, b, x):
    return torch.func.functional_call(base, (p, b), (x,))
optimizer = torch.optim.Adam(params.values(), lr=0.01)
for i in range(4):
    x = torch.randn(5, 3)
    loss = torch.func.vmap(one, (0, 0, None))(params, buffers, x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
results.append(params)
"""


@_in(WHOLE)
def only_inference(draw: Draw) -> str:
    return """
model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU()).eval()
with torch.inference_mode():
    results += [model(torch.randn(2, 2, 9)) for _ in range(5)]
traced = torch.jit.trace(model, torch.randn(2, 2, 9))
results.append(traced(torch.ones(2, 2, 9)))
"""


# --- twists


@_in(TWISTS)
def caught_error(draw: Draw) -> Twist:
    return Twist(
        inside="""
if i % 2:
    try:
        torch.zeros(3, 4) @ torch.zeros(3, 4)
    except RuntimeError as error:
        results.append(str(error))
"""
    )


@_in(TWISTS)
def caught_in_backward(draw: Draw) -> Twist:
    return Twist(
        before="""
def refuse(grad):
    raise KeyError("no gradient")
""",
        inside="""
probe = torch.ones(2, requires_grad=True)
probe.register_hook(refuse)
try:
    (probe * 2).sum().backward()
except KeyError as error:
    results.append(repr(error))
""",
    )


@_in(TWISTS)
def thread(draw: Draw) -> Twist:
    return Twist(
        inside="""
def work(box=[], i=i):
    g = torch.Generator().manual_seed(i)
    a = torch.randn(4, 4, generator=g, requires_grad=True)
    (a @ a).sum().backward()
    results.append(a.grad)
worker = threading.Thread(target=work)
worker.start()
worker.join()
"""
    )


@_in(TWISTS)
def busy_threads(draw: Draw) -> Twist:
    return Twist(
        before="""
stop = threading.Event()
def spin():
    a = torch.ones(8, 8)
    while not stop.is_set():
        a = (a @ a).clamp(0, 1)
spinners = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
for t in spinners:
    t.start()
""",
        after="""
stop.set()
for t in spinners:
    t.join()
""",
    )


@_in(TWISTS)
def loader(draw: Draw) -> Twist:
    workers = draw.choice([0, 0, 1])
    return Twist(
        before=f"""
dataset = data.TensorDataset(torch.arange(24.0).reshape(12, 2))
for (rows,) in data.DataLoader(dataset, batch_size=5, shuffle=True, num_workers={workers}):
    results.append(rows.sum())
"""
    )


@_in(TWISTS)
def copies(draw: Draw) -> Twist:
    return Twist(inside="results.append(copy.deepcopy([p for p in parameters_of(locals())]))")


@_in(TWISTS)
def saved_and_loaded(draw: Draw) -> Twist:
    return Twist(
        after="""
file = io.BytesIO()
torch.save({"results": results, "rng": torch.get_rng_state()}, file)
file.seek(0)
results.append(torch.load(file, weights_only=False)["results"])
"""
    )


@_in(TWISTS)
def saved_tensor_hooks(draw: Draw) -> Twist:
    return Twist(
        around_loss=draw.choice(
            [
                "torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)",
                "torch.autograd.graph.save_on_cpu()",
                "torch.autograd.set_detect_anomaly(True, check_nan=False)",
            ]
        )
    )


@_in(TWISTS)
def autocast(draw: Draw) -> Twist:
    return Twist(around_loss="torch.autocast('cpu', dtype=torch.bfloat16)")


@_in(TWISTS)
def own_mode(draw: Draw) -> Twist:
    kind = draw.choice(["Counting", "FunctionCounting"])
    return Twist(
        before=f"mode = {kind}()",
        around_loss="mode",
        after="results.append(dict(mode.seen) if isinstance(mode, Counting) else mode.seen)",
    )


@_in(TWISTS)
def global_hooks(draw: Draw) -> Twist:
    return Twist(
        before="""
heard = collections.Counter()
handles = [
    nn.modules.module.register_module_forward_hook(lambda m, a, o: heard.update([type(m).__name__])),
    nn.modules.module.register_module_forward_pre_hook(lambda m, a: heard.update(["pre"])),
]
""",
        after="""
for handle in handles:
    handle.remove()
results.append(dict(heard))
""",
    )


@_in(TWISTS)
def gradient_hooks(draw: Draw) -> Twist:
    return Twist(
        inside="""
w = torch.ones(3, requires_grad=True)
y = (w * 2)
y.retain_grad()
y.register_hook(lambda g: g * 3)
y.sum().backward()
results.append([w.grad, y.grad, type(y.grad_fn).__name__])
"""
    )


@_in(TWISTS)
def freed_at_once(draw: Draw) -> Twist:
    return Twist(
        inside="""
big = torch.randn(50)
alive = weakref.ref(big)
out = (big * 2).sum()
del big
results.append(alive() is None)
"""
    )


@_in(TWISTS)
def child_process(draw: Draw) -> Twist:
    return Twist(
        before="results.append(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True).stdout)"
    )


@_in(TWISTS)
def forked(draw: Draw) -> Twist:
    leave = draw.choice(["os._exit(7)", "os._exit(0 if torch.ones(2).sum() == 2 else 1)"])
    return Twist(
        after=f"""
child = os.fork()
if child == 0:
    {leave}
results.append(os.waitpid(child, 0)[1])
"""
    )


@_in(TWISTS)
def said_aloud(draw: Draw) -> Twist:
    return Twist(
        inside="""
print("step", i, file=sys.stderr)
warnings.warn(f"be careful at {i}")
"""
    )


@_in(TWISTS)
def signals(draw: Draw) -> Twist:
    return Twist(
        before="""
signalled = []
before = signal.signal(signal.SIGUSR1, lambda *a: signalled.append(1))
""",
        inside="os.kill(os.getpid(), signal.SIGUSR1)",
        after="""
signal.signal(signal.SIGUSR1, before)
results.append(len(signalled))
""",
    )


@_in(TWISTS)
def evaluation(draw: Draw) -> Twist:
    how = draw.choice(["torch.no_grad()", "torch.inference_mode()", "torch.set_grad_enabled(False)"])
    return Twist(
        inside=f"""
with {how}:
    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    results.append(m(torch.ones(2, 3)))
"""
    )


@_in(TWISTS)
def doubles(draw: Draw) -> Twist:
    return Twist(
        before="torch.set_default_dtype(torch.float64)", after="torch.set_default_dtype(torch.float32)"
    )


@_in(TWISTS)
def intended_infinities(draw: Draw) -> Twist:
    return Twist(
        inside="""
row = torch.tensor([1.0, float("-inf"), 2.0])
results += [row.softmax(0), row.max(), torch.full((3,), float("inf")).amin().clamp(max=9)]
results.append(torch.tensor(0.0).log().exp())
"""
    )


@_in(TWISTS)
def garbage(draw: Draw) -> Twist:
    return Twist(inside="gc.collect()\ncycle = [torch.ones(3)]\ncycle.append(cycle)\ndel cycle")


@_in(TWISTS)
def out_arguments(draw: Draw) -> Twist:
    return Twist(
        before="out = torch.empty(0)\nlist_out = [torch.ones(3), torch.zeros(2)]",
        inside="""
torch.add(torch.ones(3) * i, 1, out=out.resize_(3))
torch._foreach_mul_(list_out, 1.5)
out.set_(torch.arange(4.0))
results += [out.clone(), list_out[0].clone()]
""",
    )


@_in(TWISTS)
def data_of_parameters(draw: Draw) -> Twist:
    return Twist(
        inside="for p in parameters_of(locals()):\n    p.data.mul_(0.999)\n    p.data = p.data.clone()\n    break"
    )


# --- endings


ENDINGS.update(
    normal="",
    exit_code="sys.exit(3)",
    exit_text="sys.exit('I am done')",
    raised="raise ValueError('the end of the program')",
    raised_deep="nn.Linear(2, 2)(torch.ones(3, 3))",
    in_hook="""
w = torch.ones(2, requires_grad=True)
def refuse(grad):
    raise LookupError("from a hook")
w.register_hook(refuse)
w.sum().backward()
""",
    interrupted="raise KeyboardInterrupt",
    at_once="sys.stdout.flush(); os._exit(5)",
    terminated="os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
    at_exit="atexit.register(lambda: print('goodbye', torch.ones(3).sum().item()))",
    daemon="threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    late_thread="threading.Timer(0.3, lambda: print('late', torch.ones(2).sum().item())).start()",
    excepthook="sys.excepthook = lambda *a: print('hooked', a[0].__name__); raise OSError('x')",
    closed_stderr="sys.stderr.close()",
    chained="""
try:
    torch.zeros(2).view(3)
except RuntimeError as error:
    raise TypeError("worse") from error
""",
)


# --- planted bad values: statements in which one line makes the first NaN or infinity, and whether it must be named

PLANTS: dict[str, tuple[str, bool]] = {
    "log_of_negative": ("loss = loss + (loss.detach() * 0 - 1).log()  # planted", True),
    "zero_by_zero": ("loss = loss + loss * 0 / torch.zeros(())  # planted", True),
    "sqrt_of_negative": ("loss = loss * torch.sqrt(-loss.detach().abs() - 1)  # planted", True),
    "overflow": ("loss = loss + (loss.detach() * 0 + 200).exp()  # planted", True),
    "half": ("loss = loss + (loss.detach() * 0 + 1e6).half().float()  # planted", True),
    "gradient_of_sqrt": ("loss = loss + (loss * 0).sqrt()  # planted", False),
    "gradient_of_norm": ("loss = loss + (loss * 0).abs().pow(0.5)  # planted", False),
    "acos": ("loss = loss + torch.acos(loss.detach() * 0 + 1.5)  # planted", True),
}


# --- putting them together


def draw_file(number: int) -> Drawn:
    """The file of this seed: one program at the top level, or several as functions; one bad value in some."""
    draw = random.Random(number)
    drawn = Drawn("")
    plants = draw.random() < 0.25
    single = draw.random() < 0.25
    bodies = []
    count = 1 if single else draw.randint(5, 14)
    for k in range(count):
        is_planted = plants and k == count - 1
        bodies.append(_program(draw, f"p{k}", drawn.parts, is_planted))
    if single:
        text = bodies[0]
    else:
        text = "\n\n".join(
            f"def program_{k}():\n{textwrap.indent(body, '    ')}\n\n\nattempt(program_{k})"
            for k, body in enumerate(bodies)
        )
    ending = draw.choice(list(ENDINGS)) if draw.random() < 0.6 and not plants else "normal"
    drawn.parts.append(f"ends:{ending}")
    drawn.source = f"{PRELUDE}\n\n{text}\n\nthe_program_is_over()\n{ENDINGS[ending].strip()}\n"
    if plants:
        drawn.expects = "bad"
        must_name = next(PLANTS[p.removeprefix("plant:")][1] for p in drawn.parts if p.startswith("plant:"))
        lines = [n for n, line in enumerate(drawn.source.splitlines(), 1) if "# planted" in line]
        drawn.planted_line = lines[0] if must_name and len(lines) == 1 else None
    return drawn


def _program(draw: Draw, name: str, parts: list[str], is_planted: bool) -> str:
    seed = draw.randint(0, 10**6)
    start = f"seed({seed})\nresults = []\n"
    if not is_planted and draw.random() < 0.25:
        whole = draw.choice(list(WHOLE))
        parts.append(whole)
        return f"{start}{WHOLE[whole](draw).strip()}\nshow({name!r}, results)\n"
    model, training = draw.choice(list(MODELS)), draw.choice(list(TRAINING))
    twists = draw.sample(list(TWISTS), draw.choice([0, 1, 1, 2, 3]))
    parts.append("+".join([model, training, *twists]))
    made = [TWISTS[twist](draw) for twist in twists]
    around = [t.around_loss for t in made if t.around_loss]
    compute = "loss = loss_of(i)"
    if is_planted:
        plant = draw.choice(list(PLANTS))
        parts.append(f"plant:{plant}")
        compute += f"\nif i >= 1:\n    {PLANTS[plant][0]}"
        training = draw.choice(["plain", "accumulated", "scaled", "averaged", "as_generator", "two_groups"])
    if around:
        compute = f"with {', '.join(around)}:\n{textwrap.indent(compute, '    ')}"
    compute += "\nresults.append(loss.detach())"
    loop = TRAINING[training](draw).strip("\n")
    loop = _replaced(loop, "#INSIDE", "\n".join(t.inside.strip("\n") for t in made if t.inside))
    loop = _replaced(loop, "#LOSS", compute)
    prepare = draw.choice(["x", "x", "x.clone().mul_(0.5)", "(x - x.mean()) / (x.std() + 1e-5)"])
    return "\n".join(
        [
            start,
            *(t.before.strip("\n") for t in made if t.before),
            f"def prepare(x):\n    return {prepare}",
            MODELS[model](draw).strip("\n"),
            loop,
            *(t.after.strip("\n") for t in made if t.after),
            f"show({name!r}, results, model.state_dict(), [p.grad for p in model.parameters()])",
        ]
    )


def _replaced(text: str, mark: str, statements: str) -> str:
    """Put statements where a mark stands, as deep as it stands."""
    lines = []
    for line in text.splitlines():
        if line.strip() == mark:
            lines.append(textwrap.indent(statements, line[: len(line) - len(line.lstrip())]))
        elif line.strip():
            lines.append(line)
    return "\n".join(lines)
