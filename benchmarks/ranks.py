"""Measures what `tensortap run` costs on one model in the forms that jobs of many ranks have, unsharded beside them.

    python benchmarks/ranks.py tp fsdp2 --rounds 5

A small transformer is trained on two ranks (gloo, on this machine) as plain copies, under DDP, with its weights sharded
(FSDP2; HSDP over a mesh of two dimensions), its layers split (tensor parallel; sequence parallel), and both. As in
`programs.py`, watched and unwatched ranks take turns. Ranks wait for each other, and more of them than there are cores
for the processor too, so what counts is the processor time of the threads that train, as a mean over ranks: `thread` is
the ratio of it in settled steps. `first` is how many seconds the first ten steps take, watched and not.

    python benchmarks/ranks.py ddp --without=--no-compare

This measures what the option leaves out: the plain ranks are then watched, too, with that option.

    python benchmarks/ranks.py tp --width 256 --layers 4 --length 128

The model is tiny unless it is told to be larger: much of what a rank does in a step then does not depend on sizes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from program_zoo import Step, serve
from programs import started
from torch import Tensor, nn
from torch.nn import functional as F

RANKS = 2
FIRST = 10
BLOCK = 12
SIZES = {"width": 64, "layers": 2, "batch": 8, "length": 32}


class Block(nn.Module):
    """A block of a transformer whose heads can be split between ranks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.ln_1(x)
        parts = (part(normal) for part in (self.q, self.k, self.v))
        q, k, v = (each.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for each in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Model(nn.Module):
    """A language model of a few blocks."""

    def __init__(self, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def unsharded(model: Model) -> nn.Module:
    return model


def ddp(model: Model) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fsdp2(model: Model) -> nn.Module:
    return _shard(model, _mesh(RANKS))


def hsdp(model: Model) -> nn.Module:
    return _shard(model, _mesh(RANKS, 1))


def tp(model: Model) -> nn.Module:
    return _split(model, _mesh(RANKS))


def sp(model: Model) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh, rows = _mesh(RANKS), Shard(1)
    inner: dict[str, Any] = {name: ColwiseParallel(input_layouts=rows) for name in ("q", "k", "v", "up")}
    inner |= {name: RowwiseParallel(output_layouts=rows) for name in ("o", "down")}
    inner |= {name: SequenceParallel() for name in ("ln_1", "ln_2")}
    for block in model.blocks:
        parallelize_module(block, mesh, inner)
    outer = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=rows, output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, outer)


def tp_fsdp(model: Model) -> nn.Module:
    mesh = _mesh(1, RANKS)
    return _shard(_split(model, mesh["second"]), mesh["first"])


def _mesh(*sizes: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes, mesh_dim_names=("first", "second")[: len(sizes)])


def _shard(model: Model, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _split(model: Model, mesh: Any) -> Model:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan: dict[str, Any] = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    plan |= {name: RowwiseParallel() for name in ("o", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


FORMS: dict[str, Callable[[Model], nn.Module]] = {
    each.__name__: each for each in (unsharded, ddp, fsdp2, hsdp, tp, sp, tp_fsdp)
}


def program(form: str, width: int, layers: int, batch: int, length: int) -> Step:
    """Join the other ranks, and make the model and its step."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = FORMS[form](Model(width, layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randint(100, (batch, length)), torch.randint(100, (batch, length))

    def step() -> None:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measured(form: str, rounds: int, without: str | None, sizes: Sequence[str]) -> dict[str, Any]:
    """Ratios of watched to unwatched blocks of steps, and seconds of the first ones."""
    threads, walls, plain_ms = [], [], []
    with (
        started(form, None if without is None else [without], __file__, RANKS, sizes) as plain,
        started(form, [], __file__, RANKS, sizes) as watched,
    ):
        first = [max(sum(each["walls"]) for each in one.run_ranks(FIRST)) for one in (plain, watched)]
        for number in range(rounds):
            order = (plain, watched) if number % 2 == 0 else (watched, plain)
            answers = {id(one): one.run_ranks(BLOCK) for one in order}
            mine, theirs = answers[id(watched)], answers[id(plain)]
            threads.append(sum(each["thread"] for each in mine) / sum(each["thread"] for each in theirs))
            walls.append(sum(mine[0]["walls"]) / sum(theirs[0]["walls"]))
            plain_ms.append(statistics.mean(each["thread"] for each in theirs) / BLOCK * 1e3)
    return {
        "plain": statistics.median(plain_ms),
        "thread": statistics.median(threads),
        "wall": statistics.median(walls),
        "first": first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("forms", nargs="*", choices=[*FORMS, []], help="all of them by default")
    parser.add_argument("--rounds", type=int, default=5)
    for name, size in SIZES.items():
        parser.add_argument(
            f"--{name}", type=int, default=size, help="of the model or its input (%(default)s)"
        )
    parser.add_argument("--without", metavar="OPTION", help="compare with this option of `tensortap run`")
    parser.add_argument("--pipes", nargs=2, help="be one such program, commanded through these pipes")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in SIZES}
    if options.pipes:
        torch.set_num_threads(1)
        serve(program(options.forms[0], **sizes), *options.pipes)
        torch.distributed.destroy_process_group()
        return
    print("form        plain, ms  thread   wall   first, s  watched, s")
    for form in options.forms or FORMS:
        found = measured(
            form, options.rounds, options.without, [f"--{name}={size}" for name, size in sizes.items()]
        )
        ratios = f"{found['thread']:7.2f} {found['wall']:6.2f}"
        plain, watched = found["first"]
        print(f"{form:10} {found['plain']:10.1f} {ratios} {plain:10.1f} {watched:11.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
