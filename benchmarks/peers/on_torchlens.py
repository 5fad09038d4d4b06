"""TorchLens. It wraps the functions of torch for the whole process, so it has one of its own."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from peers import HEALTH, VALUES, Peer, Watching, empty_folder, make_folder, newest_in
from peers.on_torch import start

if TYPE_CHECKING:
    from workloads import Workload


def open_torchlens(
    workload: Workload, stack: ExitStack, gradients: bool = False, save: bool = False
) -> Watching:
    """Traces the model's forward, keeping every output; then the backward through the trace, if asked.

    It watches a model, not a step, so the step is spelled out here. Loss and optimizer stay unwatched.
    """
    import torchlens
    from torch.nn import functional as F
    from torchlens.backends.torch.wrappers import unwrap_torch, wrap_torch

    model, optimizer = workload.modules["model"], workload.optimizers["optimizer"]
    tokens, targets = workload.batch["tokens"], workload.batch["targets"]
    options = torchlens.options.CaptureOptions(save_grads=gradients)
    folder = make_folder(stack) if save else None
    names = (folder / f"step{number}" for number in count()) if folder else None
    traces: list[Any] = []

    def call() -> None:
        trace = torchlens.trace(model, tokens, capture=options)
        logits = trace[trace.output_layers[0]].out
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        if gradients:
            trace.log_backward(loss)
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if names:
            torchlens.save(trace, next(names))
        traces[:] = [trace]

    def count_records() -> int:
        (trace,) = traces
        if folder:
            trace = torchlens.load(newest_in(folder))
        kept = [op.out for op in trace.ops] + [op.grad for op in trace.ops if gradients]
        return sum(tensor is not None for tensor in kept)

    def clean() -> None:
        traces.clear()
        if folder:
            empty_folder(folder)

    # Left wrapped, as torchlens leaves them, the functions would slow the unwatched step as well.
    return Watching(call, count_records, folder, prepare=wrap_torch, settle=unwrap_torch, clean=clean)


def make_peer(setting: str, group: str, granularity: str, **how: bool) -> Peer:
    return Peer(
        "torchlens",
        setting,
        group,
        granularity,
        package="torchlens",
        install="tensortap[peer-torchlens]",
        process="torchlens",
        start=start,
        open=partial(open_torchlens, **how),
    )


PEERS = [
    make_peer("forward, in memory", HEALTH, "op, forward"),
    make_peer("forward + gradients, in memory", HEALTH, "op", gradients=True),
    make_peer("forward + gradients + save", VALUES, "op", gradients=True, save=True),
]
