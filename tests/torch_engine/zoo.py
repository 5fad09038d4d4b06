"""The zoo: small real training steps, one per thing that PyTorch programs do and an interceptor may miss.

Contract tests run every entry of `ZOO` over every interceptor. The rules that make this possible:

1. A factory seeds torch and then builds everything, so two calls give twins with equal parameters that share
   nothing. Dropout draws from the global generator: run one twin to its end before making the next.
2. `Case.batch(run)` gives fresh inputs that depend on `run` alone and leaves the global generator untouched.
3. `Case.step(**batch)` is what a user would write: no tensortap, no helpers around the training calls, so
   that source lines and op sequences are those of real code. It returns a dict with at least "loss".
4. Everything runs on the CPU in milliseconds, without a warning, with equal bits every time.

Cases that need their own handling are exported beside the zoo: `make_compiled`, `make_compiled_function`,
`make_exception_mid_step`, `make_op_error`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Step = Callable[..., dict[str, Any]]
Batch = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One training step with all it touches.

    Attributes:
        step: Trains once; its parameters are the keys of a batch.
        batch: Gives the inputs of run 0, 1, 2, …
        modules: What a session is told about, by name.
        optimizers: Likewise.
        name: The key in `ZOO`; filled in by the factory.
    """

    step: Step
    batch: Batch
    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    name: str = ""

    def run(self, runs: int) -> list[Tensor]:
        """Trains for `runs` steps without anyone watching; returns the losses."""
        return [self.step(**self.batch(run))["loss"].detach().clone() for run in range(runs)]

    def state(self) -> dict[str, Tensor]:
        """Copies of all parameters and buffers, to compare with a twin's."""
        return {
            f"{name}.{key}": value.detach().clone()
            for name, module in self.modules.items()
            for key, value in module.state_dict().items()
        }


ZOO: dict[str, Callable[[], Case]] = {}


def seeded(build: Callable[..., Case]) -> Callable[..., Case]:
    """Makes a factory of twins: torch is seeded before anything is built, and the case is named."""

    @functools.wraps(build)
    def make(*args: Any, **kwargs: Any) -> Case:
        torch.manual_seed(0)
        return replace(build(*args, **kwargs), name=build.__name__.removeprefix("make_"))

    return make


def zoo(build: Callable[[], Case]) -> Callable[[], Case]:
    """Registers a factory in `ZOO` under its own name."""
    make = ZOO[build.__name__] = seeded(build)
    return make


def generator(run: int) -> Generator:
    return Generator().manual_seed(1000 + run)


def vectors(run: int) -> dict[str, Any]:
    """A regression batch: 8 rows of 6 features, 3 targets."""
    g = generator(run)
    return {"x": torch.randn(8, 6, generator=g), "y": torch.randn(8, 3, generator=g)}


def labelled(run: int) -> dict[str, Any]:
    """A classification batch: 8 rows of 6 features, one of 3 classes."""
    g = generator(run)
    return {"x": torch.randn(8, 6, generator=g), "y": torch.randint(3, (8,), generator=g)}


def sentences(run: int) -> dict[str, Any]:
    """A language batch: 2 sequences of 5 tokens out of 11, and the tokens that follow."""
    tokens = torch.randint(11, (2, 6), generator=generator(run))
    return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def series(run: int) -> dict[str, Any]:
    """A time-series batch: 2 sequences of 5 steps of 4 features, and a target of 3."""
    g = generator(run)
    return {"x": torch.randn(2, 5, 4, generator=g), "y": torch.randn(2, 3, generator=g)}


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


# Architectures


class Attention(nn.Module):
    """Causal self-attention, either through the fused operator or spelled out."""

    def __init__(self, width: int, heads: int, *, fused: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.fused = fused
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            weights = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
            mixed = self.dropout(weights) @ v
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    """Two pre-norm layers over 11 tokens."""

    def __init__(self, *, fused: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm_attn": nn.LayerNorm(8),
                    "attn": Attention(8, 2, fused=fused, dropout=dropout),
                    "norm_mlp": nn.LayerNorm(8),
                    "mlp": nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 8)),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer["attn"](layer["norm_attn"](x))
            x = x + layer["mlp"](layer["norm_mlp"](x))
        return self.head(x)


def transformer(*, fused: bool, dropout: float = 0.0) -> Case:
    model = Transformer(fused=fused, dropout=dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(tokens: Tensor, targets: Tensor) -> dict[str, Any]:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, sentences, {"model": model}, {"optimizer": optimizer})


@zoo
def transformer_sdpa() -> Case:
    return transformer(fused=True)


@zoo
def transformer_explicit() -> Case:
    """With dropout, so random operations occur in the step."""
    return transformer(fused=False, dropout=0.2)


@zoo
def cnn_batchnorm() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(run: int) -> dict[str, Any]:
        g = generator(run)
        return {"images": torch.randn(4, 3, 8, 8, generator=g), "y": torch.randint(3, (4,), generator=g)}

    def step(images: Tensor, y: Tensor) -> dict[str, Any]:
        logits = model(images)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "logits": logits}

    return Case(step, batch, {"model": model}, {"optimizer": optimizer})


@zoo
def lstm_cell_loop() -> Case:
    cell, head = nn.LSTMCell(4, 6), nn.Linear(6, 3)
    optimizer = torch.optim.AdamW([*cell.parameters(), *head.parameters()], lr=1e-2)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        state = None
        for moment in x.unbind(1):
            state = cell(moment, state)
        loss = F.mse_loss(head(state[0]), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, series, {"cell": cell, "head": head}, {"optimizer": optimizer})


@zoo
def nn_lstm() -> Case:
    lstm = nn.LSTM(4, 6, num_layers=2, dropout=0.1, bidirectional=True, batch_first=True)
    head = nn.Linear(12, 3)
    optimizer = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        outputs, (_, cells) = lstm(x)
        loss = F.mse_loss(head(outputs[:, -1]), y) + 0.01 * cells.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, series, {"lstm": lstm, "head": head}, {"optimizer": optimizer})


class Tied(nn.Module):
    """A language model whose output layer is its embedding: one parameter under two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embedding(tokens))))


@zoo
def tied_weights() -> Case:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(tokens: Tensor, targets: Tensor) -> dict[str, Any]:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, sentences, {"model": model}, {"optimizer": optimizer})


@zoo
def module_called_twice() -> Case:
    first, shared, head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    model = nn.ModuleDict({"first": first, "shared": shared, "head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        h = torch.relu(shared(first(x)))
        h = torch.relu(shared(h))
        loss = F.mse_loss(head(h), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


# Mutation


@zoo
def inplace_ops() -> Case:
    """Values changed in place, through themselves, through a view of them, and under a view of them."""
    first, second = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.ModuleDict({"first": first, "second": second})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    average = torch.zeros(8, 3)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        h = first(x)
        h.add_(0.1)
        h.masked_fill_(h > 1.5, 1.5)
        h[..., 0] = 0.25
        h.relu_()
        base = second(h)
        view = base[:, 1:]
        base.mul_(2.0)
        view.add_(1.0)
        total = base.sum(dim=1, keepdim=True) + view.mean()
        with torch.no_grad():
            torch.lerp(average, base, 0.5, out=average)
            flat = average.view(-1)
            flat[::2].clamp_(-1.0, 1.0)
        loss = F.mse_loss(base - 0.1 * average, y) + total.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "average": average.clone()}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


# Autograd


class Checkpointed(nn.Module):
    """A middle part with dropout that is recomputed in backward with its random state restored."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 8)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


def checkpointed(*, reentrant: bool) -> Case:
    model = Checkpointed(reentrant=reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def checkpoint_reentrant() -> Case:
    return checkpointed(reentrant=True)


@zoo
def checkpoint_nonreentrant() -> Case:
    return checkpointed(reentrant=False)


@zoo
def autocast_bf16() -> Case:
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prediction = model(x)
            loss = F.mse_loss(prediction.float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "prediction": prediction}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


class SmoothStep(torch.autograd.Function):
    """x·sigmoid(2x), with its derivative written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate = torch.sigmoid(2 * x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors
        return grad * (gate + 2 * x * gate * (1 - gate))


@zoo
def custom_function() -> Case:
    first, second = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.ModuleDict({"first": first, "second": second})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = F.mse_loss(second(SmoothStep.apply(first(x))), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def gradient_accumulation() -> Case:
    """The second backward adds onto gradients that are there already."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        total = 0.0
        for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.mse_loss(model(part_x), part_y) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def double_backward() -> Case:
    """A gradient penalty: the backward pass is itself differentiated."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        x = x.detach().requires_grad_()
        prediction = model(x)
        (slope,) = torch.autograd.grad(prediction.sum(), x, create_graph=True)
        loss = F.mse_loss(prediction, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def nested_no_grad_eval() -> Case:
    """An evaluation in the middle of a training step."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = F.cross_entropy(model(x), y)
        model.eval()
        with torch.no_grad():
            accuracy = (model(x).argmax(dim=1) == y).float().mean()
            with torch.enable_grad():
                sensitivity = model(x).logsumexp(dim=1).mean()
        model.train()
        (loss + 0.01 * sensitivity).backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "accuracy": accuracy}

    return Case(step, labelled, {"model": model}, {"optimizer": optimizer})


@zoo
def vmap_grad() -> Case:
    """Gradients per sample, with functional transforms instead of `backward`."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def sample_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    per_sample = torch.func.vmap(torch.func.grad_and_value(sample_loss), in_dims=(None, 0, 0))

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        gradients, losses = per_sample(parameters, x, y)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clamp(-0.5, 0.5).mean(dim=0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": losses.mean()}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def higher_order_cond() -> Case:
    """An operator that takes functions.

    `torch.cond` itself compiles its branches when called eagerly, and raises under a dispatch mode; the
    operator behind it does neither.
    """
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def wide(h: Tensor) -> tuple[Tensor]:
        return (torch.sin(h) * 2,)

    def narrow(h: Tensor) -> tuple[Tensor]:
        return (torch.tanh(h) + 1,)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        (prediction,) = torch.ops.higher_order.cond(x.sum() > 0, wide, narrow, (model(x),))
        loss = F.mse_loss(prediction, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


# Optimizers


def optimized_by(make_optimizer: Callable[..., torch.optim.Optimizer]) -> Case:
    model = perceptron()
    optimizer = make_optimizer(model.parameters())

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def adamw_foreach() -> Case:
    return optimized_by(functools.partial(torch.optim.AdamW, lr=1e-2, foreach=True))


@zoo
def adamw_fused() -> Case:
    return optimized_by(functools.partial(torch.optim.AdamW, lr=1e-2, fused=True))


@zoo
def adamw_forloop() -> Case:
    return optimized_by(functools.partial(torch.optim.AdamW, lr=1e-2, foreach=False, amsgrad=True))


@zoo
def sgd_momentum() -> Case:
    return optimized_by(
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)
    )


@zoo
def optimizer_closure() -> Case:
    """LBFGS runs forward and backward several times inside one optimizer step."""
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return {"loss": optimizer.step(closure)}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def clip_and_schedule() -> Case:
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return {"loss": loss, "norm": norm, "lr": schedule.get_last_lr()[0]}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def two_optimizers() -> Case:
    """Two models trained against each other in one step."""
    maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
    judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-2)
    judge_optimizer = torch.optim.SGD(judge.parameters(), lr=1e-1)

    def batch(run: int) -> dict[str, Any]:
        g = generator(run)
        return {"real": torch.randn(8, 6, generator=g), "noise": torch.randn(8, 3, generator=g)}

    def step(real: Tensor, noise: Tensor) -> dict[str, Any]:
        fake = maker(noise)
        judge_loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(real)).mean()
        judge_loss.backward()
        judge_optimizer.step()
        judge_optimizer.zero_grad()

        loss = F.softplus(-judge(fake)).mean()
        loss.backward()
        maker_optimizer.step()
        maker_optimizer.zero_grad()
        judge_optimizer.zero_grad()
        return {"loss": loss, "judge_loss": judge_loss.detach()}

    return Case(
        step,
        batch,
        {"maker": maker, "judge": judge},
        {"maker_optimizer": maker_optimizer, "judge_optimizer": judge_optimizer},
    )


# Values: where they come from, their types and their shapes


@zoo
def literals() -> Case:
    """Tensors that no operation on the batch or a parameter made."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask = torch.tensor([True, True, False, True, True, False, True, True])
    smoothing, floor = 0.9, 1e-3

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        weights = torch.tensor([1.0, 0.5, 2.0])
        offsets = torch.from_numpy(np.linspace(0.0, 1.0, 8, dtype=np.float32)).unsqueeze(1)
        ramp = torch.arange(3) / 3
        prediction = model(x) * smoothing + offsets * ramp
        error = ((prediction - y).square() * weights).sum(dim=1)
        loss = torch.where(mask, error, torch.full_like(error, floor)).mean() + floor
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def multi_output() -> Case:
    """Operations that return several tensors, as tuples or lists, of mixed types."""
    lift, norm = nn.Linear(6, 12), nn.LayerNorm(12)
    groups, head = nn.GroupNorm(3, 12), nn.Linear(12, 3)
    model = nn.ModuleDict({"lift": lift, "norm": norm, "groups": groups, "head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        h = groups(norm(lift(x)))
        best, where = h.topk(3, dim=1)
        left, middle, right = h.split([2, 4, 6], dim=1)
        low, high = right.chunk(2, dim=1)
        first, *_ = low.unbind(dim=1)
        peak, at = middle.max(dim=1)
        ordered, _ = high.sort(dim=1, descending=True)
        variance, mean = torch.var_mean(left, dim=1)
        extra = (best * ordered).mean() + (first * peak).mean() + variance.mean() - mean.square().mean()
        loss = F.mse_loss(head(h), y) + 0.1 * extra
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "where": where, "at": at}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def lists_of_tensors() -> Case:
    """Operations on lists, as Python, `torch.ops` and PyTorch itself hand them over, and those that return some."""
    model = nn.ModuleDict({"lift": nn.Linear(6, 4), "head": nn.Linear(12, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        h = model["lift"](x)
        rows = torch.tensor([7, 0, 3, 1, 2, 4, 5, 6])
        mixed = torch.cat((h[rows], h[:, [2, 0, 1, 3]]), 1)[None, :, rows][0]
        wide = torch.hstack([h, h.double().float()]) + torch.column_stack([h, mixed[:, :4]])
        first, second = torch.broadcast_tensors(wide[:1], wide)
        halves = torch.unsafe_chunk(first + second, 2, 1)
        quarters = [part.sum() for part in torch.unsafe_split(mixed, 2)]
        pairs = torch.concatenate((h, h.sin()), 1)
        long = torch.ops.aten.cat([*halves, h], 1) + torch.cat([torch.empty(0), *halves, pairs[:, :4]], 1)
        loss = F.mse_loss(model["head"](long), y) + 0.01 * torch.stack(quarters).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def embedding_sparse_free() -> Case:
    """Lookups and scatters with dense gradients."""
    bag, table, head = nn.EmbeddingBag(11, 6, mode="mean"), nn.Embedding(11, 6), nn.Linear(6, 11)
    model = nn.ModuleDict({"bag": bag, "table": table, "head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(tokens: Tensor, targets: Tensor) -> dict[str, Any]:
        context = bag(tokens)
        words = table.weight.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
        scores = torch.log_softmax(head(words + context.unsqueeze(1)), dim=-1)
        chosen = scores.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        per_word = torch.zeros(11).scatter_add(0, targets.flatten(), -chosen.flatten())
        loss = per_word.sum() / targets.numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "per_word": per_word.detach()}

    return Case(step, sentences, {"model": model}, {"optimizer": optimizer})


class SpectralFilter(nn.Module):
    """A learned complex filter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.rfft(x, dim=1) * self.filter
        energy = torch.view_as_real(spectrum).square().sum(dim=(1, 2))
        return self.head(torch.fft.irfft(spectrum, n=6, dim=1)), energy


@zoo
def complex_fft() -> Case:
    model = SpectralFilter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        prediction, energy = model(x)
        loss = F.mse_loss(prediction, y) + 1e-3 * energy.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@zoo
def dict_batch() -> Case:
    """A step with one parameter that holds tensors in nested containers."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(run: int) -> dict[str, Any]:
        x, y = vectors(run).values()
        return {"data": {"inputs": {"x": x, "scale": 0.5}, "targets": (y, [y.mean(dim=1)])}, "weight": 2.0}

    def step(data: dict[str, Any], weight: float) -> dict[str, Any]:
        target, (target_mean,) = data["targets"]
        prediction = model(data["inputs"]["x"] * data["inputs"]["scale"])
        loss = F.mse_loss(prediction, target) + weight * F.mse_loss(prediction.mean(dim=1), target_mean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "predictions": {"all": prediction, "rows": prediction.unbind()}}

    return Case(step, batch, {"model": model}, {"optimizer": optimizer})


@zoo
def bool_int_ops() -> Case:
    """Boolean and integer values, and shapes that depend on the data and so change from run to run."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        logits = model(x)
        guess = logits.argmax(dim=1)
        wrong = (guess != y) | (y == 0)
        rows = wrong.nonzero().squeeze(1)
        positive = logits.masked_select(logits > 0)
        counts = torch.bincount(guess * 3 + y, minlength=9)
        errors = F.cross_entropy(logits, y, reduction="none")
        loss = torch.where(wrong, 2 * errors, errors).mean() + 0.01 * positive.sum()
        if rows.numel() > 0:
            loss = loss + 0.1 * errors[rows].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "rows": rows, "counts": counts}

    return Case(step, labelled, {"model": model}, {"optimizer": optimizer})


class Tempered(nn.Module):
    """A linear layer with a temperature: a parameter of no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("nothing", torch.empty(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return torch.cat([self.linear(x) / self.temperature, self.nothing])


@zoo
def empty_and_scalar() -> Case:
    """Tensors without elements, and tensors without dimensions."""
    model = Tempered()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor, gain: Tensor) -> dict[str, Any]:
        none = model(x[:0])
        loss = F.mse_loss(model(x) * gain, y) + none.sum() + none.square().sum(dim=0).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "none": none, "value": loss.item(), "all_fine": none.isfinite().all()}

    def batch(run: int) -> dict[str, Any]:
        return {**vectors(run), "gain": torch.tensor(0.5 + run)}

    return Case(step, batch, {"model": model}, {"optimizer": optimizer})


# Outside the zoo


@seeded
def make_compiled(backend: str = "aot_eager") -> Case:
    """A model under `torch.compile`; the rest of the step is eager."""
    model = perceptron()
    fast = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = F.mse_loss(fast(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": fast}, {"optimizer": optimizer})


@seeded
def make_compiled_function(backend: str = "aot_eager") -> Case:
    """A compiled function, not a module, called from an eager step.

    The model is called inside because Dynamo reads `.grad` of each argument, which warns for one that is not
    a leaf, and tests turn warnings into errors.
    """
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def huber(x: Tensor, y: Tensor) -> Tensor:
        error = (model(x) - y).abs()
        return torch.where(error < 1, 0.5 * error.square(), error - 0.5).mean()

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = huber(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})


@seeded
def make_exception_mid_step(fail_at: int = 1) -> Case:
    """The user's own code raises ValueError after the forward of run `fail_at`."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(run: int) -> dict[str, Any]:
        return {**vectors(run), "run": run, "fail_at": fail_at}

    def step(x: Tensor, y: Tensor, run: int, fail_at: int) -> dict[str, Any]:
        loss = F.mse_loss(model(x), y)
        if run == fail_at:
            raise ValueError(f"the loss of run {run} does not please the user")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, batch, {"model": model}, {"optimizer": optimizer})


@seeded
def make_op_error() -> Case:
    """Every step fails inside an operation: matmul meets shapes that do not fit."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = (model(x) @ y).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Case(step, vectors, {"model": model}, {"optimizer": optimizer})
