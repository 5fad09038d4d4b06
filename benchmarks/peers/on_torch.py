"""Peers for PyTorch that leave nothing behind between their calls and so share a process."""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

from peers import (
    HEALTH,
    VALUES,
    Call,
    Peer,
    Watching,
    empty_folder,
    make_folder,
    newest_in,
)

if TYPE_CHECKING:
    from workloads import Workload


def start(threads: int, stack: ExitStack) -> tuple[Workload, Call]:
    """The `gpt` step."""
    import torch
    from workloads import make_gpt

    torch.set_num_threads(threads)
    workload = make_gpt()
    return workload, lambda: workload.step(**workload.batch)


# tensortap


def open_tensortap(workload: Workload, stack: ExitStack, variant: str, interceptor: str) -> Watching:
    """A variant of overhead.py, with the interceptor chosen."""
    import overhead

    from tensortap.reader import DebugDumpDir

    with mock.patch.dict(os.environ, TENSORTAP_INTERCEPTOR=interceptor):  # read when a session is made
        call = overhead.VARIANTS[variant](workload, stack)
    cleaner = overhead.CLEANERS[-1]

    def count_records() -> int:
        runs = cleaner.root.glob("run_*")
        return DebugDumpDir(max(runs, key=lambda run: run.stat().st_mtime_ns)).size

    return Watching(call, count_records, cleaner.root, settle=cleaner.hook.flush, clean=cleaner)


# torch.utils DebugMode


def open_debug_mode(workload: Workload, stack: ExitStack, context: str, key: str) -> Watching:
    """A log of every operation, decorated by the given context; `key` is what that adds to a log entry."""
    from torch.utils._debug_mode import DebugMode
    from torch.utils._pytree import tree_leaves

    logs: list[Any] = []

    def call() -> None:
        decorate = getattr(DebugMode, context) if context else nullcontext
        with DebugMode() as mode, decorate():
            workload.step(**workload.batch)
        logs[:] = mode.logs

    def count_records() -> int:
        if not key:
            return len(logs)
        return sum(leaf is not None for entry in logs for leaf in tree_leaves((entry.log or {}).get(key)))

    return Watching(call, count_records, clean=logs.clear)


def open_debug_mode_dump(workload: Workload, stack: ExitStack) -> Watching:
    """Every output cloned by DebugMode, then saved to one file: it has no dump of its own."""
    import torch
    from torch.utils._debug_mode import DebugMode
    from torch.utils._pytree import tree_leaves

    folder = make_folder(stack)
    names = (folder / f"step{number}.pt" for number in count())

    def call() -> None:
        with DebugMode() as mode, DebugMode.record_outputs():
            workload.step(**workload.batch)
        torch.save([(str(entry), entry.record) for entry in mode.logs if entry.record], next(names))

    def count_records() -> int:
        return sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(torch.load(newest_in(folder))))

    return Watching(call, count_records, folder, clean=partial(empty_folder, folder))


# torch.autograd


def open_anomaly_mode(workload: Workload, stack: ExitStack) -> Watching:
    """Looks for NaN in the gradient every backward operation returns, and raises at the first."""
    import torch

    def call() -> None:
        with torch.autograd.detect_anomaly():
            workload.step(**workload.batch)

    def check() -> None:
        zero = torch.zeros(1, requires_grad=True)
        try:
            with torch.autograd.detect_anomaly():
                (zero.sqrt() * 0).sum().backward()
        except RuntimeError:
            return
        raise RuntimeError("a NaN in a gradient was not reported")

    return Watching(call, check)


def make_peer(tool: str, setting: str, group: str, granularity: str, opening: Any, **more: Any) -> Peer:
    return Peer(tool, setting, group, granularity, start=start, open=opening, process="torch", **more)


TENSORTAP = {"package": "tensortap", "install": "tensortap[torch]"}
TORCH = {"package": "torch", "install": "torch"}
PEERS = [
    *(
        make_peer(
            "tensortap",
            f"{variant}, {interceptor}",
            group,
            "op",
            partial(open_tensortap, variant=variant, interceptor=interceptor),
            **TENSORTAP,
        )
        for group, variant in ((HEALTH, "health of every tensor"), (VALUES, "every value, drained"))
        for interceptor in ("native", "dispatch")
    ),
    make_peer(
        "debugmode",
        "plain: shapes only",
        HEALTH,
        "op",
        partial(open_debug_mode, context="", key=""),
        **TORCH,
    ),
    make_peer(
        "debugmode",
        "log_tensor_hashes: L1 norm",
        HEALTH,
        "op",
        partial(open_debug_mode, context="log_tensor_hashes", key="hash"),
        **TORCH,
    ),
    make_peer("debugmode", "record_outputs + torch.save", VALUES, "op", open_debug_mode_dump, **TORCH),
    make_peer("anomaly", "detect_anomaly: NaN only", HEALTH, "backward op", open_anomaly_mode, **TORCH),
]
