"""The forms that training on several ranks has, each a small program: `forms.py MEETING FORM... [--plant]`.

Plays them one after the other and prints a line of JSON for each: the losses and what is left in the parameters of this
rank, to the last bit. Planted, the last rank makes a bad value in step 2, at the line that ends in "# here".
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
BAD_STEP = 2
PLANT = "--plant" in sys.argv

Step = Callable[[int], Tensor | None]


def is_bad(step: int) -> bool:
    """Whether this rank is to do something wrong now."""
    return PLANT and step == BAD_STEP and dist.get_rank() == dist.get_world_size() - 1


def damaged(x: Tensor, step: int) -> Tensor:
    """The value, or on the last rank, in one step, NaN."""
    if is_bad(step):
        x = x - x.detach().max() - 1
        x = x.log()  # here
    return x


class Block(nn.Module):
    """A layer whose halves can be split."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.step = -1

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x)).relu()
        return x + self.down(damaged(hidden, self.step))


class Model(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def batch(step: int, rank: int | None = None) -> Tensor:
    """What a rank is given in a step; the same for all if no rank is named."""
    generator = torch.Generator().manual_seed(100 * step + (0 if rank is None else rank + 1))
    return torch.randn(4, 8, generator=generator)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def blocks(model: nn.Module) -> list[Block]:
    return [each for each in model.modules() if isinstance(each, Block)]


def trained(model: nn.Module, *, shared_data: bool = False, optimizer: Any = None) -> Step:
    """The ordinary step of a model."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(number: int) -> Tensor:
        blocks(model)[-1].step = number
        loss = loss_of(model, batch(number, None if shared_data else dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


# --- data parallel ---------------------------------------------------------------------------------


def ddp(model: Model) -> Step:
    return trained(DistributedDataParallel(model))


def ddp_static(model: Model) -> Step:
    return trained(DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True))


def ddp_unused(model: Model) -> Step:
    model.add_module("unused", nn.Linear(3, 3))
    return trained(DistributedDataParallel(model, find_unused_parameters=True))


def ddp_hook(model: Model) -> Step:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return trained(wrapped)


def ddp_buffers(model: Model) -> Step:
    model.add_module("statistics", nn.BatchNorm1d(8))
    forward = model.forward
    model.forward = lambda x: model.statistics(forward(x))  # type: ignore[method-assign]
    return trained(DistributedDataParallel(model))


def accumulation(model: Model) -> Step:
    """Gradients of two batches, exchanged with the second."""
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)

    def step(number: int) -> Tensor:
        blocks(wrapped)[-1].step = number
        optimizer.zero_grad()
        with wrapped.no_sync():
            (loss_of(wrapped, batch(2 * number, dist.get_rank())) / 2).backward()
        blocks(wrapped)[-1].step = -1
        loss = loss_of(wrapped, batch(2 * number + 1, dist.get_rank())) / 2
        loss.backward()
        optimizer.step()
        return loss

    return step


def zero(model: Model) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = DistributedDataParallel(model)
    return trained(
        wrapped, optimizer=ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=0.01)
    )


def local_sgd(model: Model) -> Step:
    """Ranks go their own way and meet at the average after every second step."""
    step, parameters = (
        trained(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01)),
        list(model.parameters()),
    )

    def averaged(number: int) -> Tensor | None:
        loss = step(number)
        if number % 2 == 1:
            with torch.no_grad():
                for each in parameters:
                    dist.all_reduce(each)
                    each /= dist.get_world_size()
        return loss

    return averaged


# --- sharded ---------------------------------------------------------------------------------------


def fsdp1(model: Model) -> Step:
    return trained(FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu")))


def fsdp2(model: Model) -> Step:
    for block in blocks(model):
        fully_shard(block)
    return trained(fully_shard(model))


def hsdp(model: Model) -> Step:
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("copies", "shards"))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    return trained(fully_shard(model, mesh=mesh))


def split(model: Model, mesh: Any) -> Model:
    for block in blocks(model):
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def tensor_parallel(model: Model) -> Step:
    return trained(split(model, init_device_mesh("cpu", (dist.get_world_size(),))), shared_data=True)


def sequence_parallel(model: Model) -> Step:
    mesh, rows = init_device_mesh("cpu", (dist.get_world_size(),)), Shard(0)
    plan: dict[str, Any] = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=rows),
        "down": RowwiseParallel(output_layouts=rows),
    }
    for block in blocks(model):
        parallelize_module(block, mesh, plan)
    return trained(model)  # every rank has other rows


def tensor_parallel_fsdp(model: Model) -> Step:
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("data", "tensor"))
    split(model, mesh["tensor"])
    for block in blocks(model):
        fully_shard(block, mesh=mesh["data"])
    return trained(fully_shard(model, mesh=mesh["data"]), shared_data=True)


# --- others ----------------------------------------------------------------------------------------


def pipeline(model: Model, chunks: int = 1) -> Step:
    """Every rank has one part of a chain of blocks, or several, which take turns."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    mine = [Block() for _ in range(chunks)]
    mine[0].load_state_dict(model.first.state_dict())
    stages = [
        PipelineStage(each, rank + place * world, chunks * world, torch.device("cpu"))
        for place, each in enumerate(mine)
    ]
    schedule = (
        ScheduleGPipe(stages[0], 2, squared) if chunks == 1 else ScheduleInterleaved1F1B(stages, 2, squared)
    )
    optimizer = torch.optim.SGD([each for block in mine for each in block.parameters()], lr=0.01)

    def step(number: int) -> Tensor | None:
        mine[-1].step = number
        optimizer.zero_grad()
        losses: list[Tensor] = []
        first = (batch(number),) if rank == 0 else ()
        last: dict[str, Any] = {"target": batch(number + 50), "losses": losses} if rank == world - 1 else {}
        schedule.step(*first, **last)
        optimizer.step()
        return torch.stack(losses).mean() if losses else None

    return step


def squared(got: Tensor, wanted: Tensor) -> Tensor:
    return (got - wanted).square().mean()


def pipeline_interleaved(model: Model) -> Step:
    return pipeline(model, chunks=2)


def pipeline_zero_bubble(model: Model) -> Step:
    """The parts of a rank are the nth and the nth from behind, and weights get their gradients later than inputs."""
    from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble

    rank, world = dist.get_rank(), dist.get_world_size()
    places = (rank, 2 * world - 1 - rank)
    mine = [model.first, model.second]
    stages = [
        PipelineStage(each, place, 2 * world, torch.device("cpu"))
        for place, each in zip(places, mine, strict=True)
    ]
    schedule = ScheduleZBVZeroBubble(stages, 2 * world, squared)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> Tensor | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        x = batch(number).repeat(world, 1)
        schedule.step(*((x,) if rank == 0 else ()), **({"target": x, "losses": losses} if rank == 0 else {}))
        optimizer.step()
        return torch.stack(losses).mean() if losses else None

    return step


class Exchange(torch.autograd.Function):
    """Every rank sends each other one a part of its rows; gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        got = torch.empty_like(x)
        dist.all_to_all_single(got, x.contiguous())
        return got

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        got = torch.empty_like(gradient)
        dist.all_to_all_single(got, gradient.contiguous())
        return got


class Mixture(nn.Module):
    """A dense part that all ranks have, and an expert of this rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.expert = nn.Linear(8, 8), nn.Linear(8, 8)
        self.step = -1

    def forward(self, x: Tensor) -> Tensor:
        there = Exchange.apply(self.dense(x))
        return x + Exchange.apply(damaged(self.expert(there), self.step))


def experts(model: Model) -> Step:
    mixture = Mixture()
    optimizer = torch.optim.SGD(mixture.parameters(), lr=0.01)

    def step(number: int) -> Tensor:
        mixture.step = number
        loss = loss_of(mixture, batch(number, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        for each in mixture.dense.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        return loss

    return step


FORMS: dict[str, Callable[[Model], Step]] = {
    each.__name__: each
    for each in (
        *(ddp, ddp_static, ddp_unused, ddp_hook, ddp_buffers, accumulation, zero, local_sgd),
        *(fsdp1, fsdp2, hsdp, tensor_parallel, sequence_parallel, tensor_parallel_fsdp),
        *(pipeline, pipeline_interleaved, pipeline_zero_bubble, experts),
    )
}


def bits(tensor: Tensor) -> str:
    """What this rank has of a tensor."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().contiguous().view(torch.uint8).numpy().tobytes().hex()


def play(form: str) -> dict[str, Any]:
    """Train for some steps."""
    torch.manual_seed(0)
    model = Model()
    step = FORMS[form](model)
    losses = []
    for number in range(STEPS):
        loss = step(number)
        losses.append(None if loss is None else float(loss).hex())
    return {"form": form, "losses": losses, "left": [bits(each) for each in model.parameters()]}


@contextlib.contextmanager
def together(meeting: str) -> Iterator[None]:
    """As one of the ranks."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    yield
    dist.barrier()  # a thread of gloo that lets go of a tensor while Python ends aborts the process
    dist.destroy_process_group()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    meeting, *forms = (each for each in sys.argv[1:] if not each.startswith("--"))
    with together(meeting):
        for form in forms or FORMS:
            print(json.dumps(play(form)), flush=True)


if __name__ == "__main__":
    main()
