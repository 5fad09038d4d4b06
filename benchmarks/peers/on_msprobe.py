"""msprobe. A process has one debugger and one configuration, so every setting has a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from peers import HEALTH, VALUES, Peer, Watching, empty_folder, make_folder, newest_in
from peers.on_torch import start

if TYPE_CHECKING:
    from workloads import Workload


def open_msprobe(workload: Workload, stack: ExitStack, task: str, level: str) -> Watching:
    """Inputs and outputs of every call, forward and backward, as statistics or as files of values."""
    from msprobe.pytorch import PrecisionDebugger

    folder = make_folder(stack)
    dumps = folder / "dumps"
    dumps.mkdir()
    config = folder / "config.json"
    choice = {"scope": [], "list": [], "data_mode": ["all"]}
    if task == "statistics":
        choice["summary_mode"] = "statistics"
    config.write_text(
        json.dumps(
            {"task": task, "level": level, "dump_path": str(dumps), "rank": [], "step": [], task: choice}
        )
    )
    debugger = PrecisionDebugger(config_path=str(config))
    model = workload.modules["model"]

    def call() -> None:
        debugger.start(model=model)
        workload.step(**workload.batch)
        debugger.stop()
        debugger.step()

    def count_records() -> int:
        (description,) = newest_in(dumps).rglob("dump.json")
        found = list(find_tensors(json.loads(description.read_text())["data"]))
        if task == "tensor":
            return sum(
                (description.parent / "dump_tensor_data" / each["data_name"]).exists() for each in found
            )
        return sum("Max" in each for each in found)

    # Once made, the debugger leaves torch's functions replaced, which would slow the unwatched step as well.
    functions = debugger.service.api_register
    functions.restore_all_api()
    return Watching(
        call,
        count_records,
        dumps,
        prepare=functions.register_all_api,
        settle=functions.restore_all_api,
        clean=partial(empty_folder, dumps),
    )


def find_tensors(described: Any) -> Iterator[dict[str, Any]]:
    """The tensors in a part of dump.json."""
    if isinstance(described, dict):
        if described.get("type") == "torch.Tensor":
            yield described
        else:
            for value in described.values():
                yield from find_tensors(value)
    elif isinstance(described, list):
        for value in described:
            yield from find_tensors(value)


def make_peer(group: str, task: str, level: str, granularity: str) -> Peer:
    return Peer(
        "msprobe",
        f"{task}, {level}",
        group,
        granularity,
        package="mindstudio-probe",
        install="tensortap[peer-msprobe]",
        process=f"msprobe {task} {level}",
        start=start,
        open=partial(open_msprobe, task=task, level=level),
    )


PEERS = [
    make_peer(group, task, level, granularity)
    for group, task in ((HEALTH, "statistics"), (VALUES, "tensor"))
    for level, granularity in (("L1", "API call"), ("mix", "API call, module"))
]
