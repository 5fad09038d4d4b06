"""Takes kinds of tensors through every path, in a process that may die of it: `walk.py FIRST_KIND`.

Prints a line of JSON for each kind, after one that says which is tried.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import tempfile
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import tensortap as tt
from tensortap.reader.session_dir import SessionDir
from tensortap.sink.memory import collect
from tensortap.watch.match import watch_run
from tests.torch_engine.subclasses.kinds import CALLS, KINDS, NO_RECORD, READ, UNREAD, Kind

NAN = float("nan")
VALUES = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, NAN, 7.0, 8.0], [0.5, 1.5, 2.5, 3.5]])


class Holder(nn.Module):
    """Has a tensor of some kind as its parameter."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor)

    def forward(self) -> torch.Tensor:
        return (self.weight * 2).sum()


def outcome(kind: Kind, call: Any) -> Any:
    """What came of a call, and what the class of the tensor was asked to do meanwhile."""
    CALLS.clear()
    try:
        result = call()
        asked = list(CALLS)
        return [repr(kind.show(result)), asked]  # a text, because NaN is not equal to itself
    except Exception as error:
        return [type(error).__name__, list(CALLS)]


def options_of(*debug_ops: str) -> tt.RunOptions:
    options = tt.RunOptions()
    watch_run(options, tt.WatchOptions(list(debug_ops)), "memcbk:///walk")
    return options


def state_of(records: Any, name: str) -> str:
    """What a pill says of a tensor."""
    for record in records:
        if record.tensor_name == name and record.debug_op == "DebugNumericSummary":
            pill = np.frombuffer(record.data, np.float64)
            return READ if pill[0] else UNREAD
    return NO_RECORD


def walk(kind: Kind) -> dict[str, Any]:
    session = tt.torch.Session(lambda x: {"y": kind.use(x)})
    tensor = kind.make(VALUES)
    expected = outcome(kind, lambda: kind.use(tensor))
    found: dict[str, Any] = {"expected": expected}

    def run(path: str, options: tt.RunOptions) -> None:
        again = kind.make(VALUES)
        with collect("walk") as records:
            found[path] = outcome(kind, lambda: session.run(None, {"x": again}, options)["y"])
        if path == "pills":
            found["state"] = state_of(records, "x:0")
            found["bad"] = [r.tensor_name for r in records if _is_bad(r)]

    run("plain", tt.RunOptions())
    run("pills", options_of("DebugNumericSummary"))
    run("values", options_of("DebugIdentity", "DebugHash", "DebugNanCount", "DebugNumericSummary"))
    run("profile", tt.RunOptions(trace_level=tt.TraceLevel.FULL_TRACE, trace_memory=True))
    with tempfile.TemporaryDirectory() as root:
        watch = tt.WatchOptions(["DebugNumericSummary"], keep_bad=8)
        dumped = tt.torch.Session(lambda x: {"y": kind.use(x)})
        again = kind.make(VALUES)
        with tt.DumpingDebugWrapperSession(
            dumped, f"{root}/d", watch_fn=lambda fetches, feeds: watch
        ) as dumping:
            found["kept"] = outcome(kind, lambda: dumping.run(None, {"x": again})["y"])
        found["runs"] = len(SessionDir(f"{root}/d").runs)
    for name, call in {
        "fetch": lambda: session.run("x:0", {"x": kind.make(VALUES)}),
        "fetch_op": lambda: session.run("mul:0", {"x": kind.make(VALUES)}),
        "feed": lambda: session.run("y", {"x": kind.make(VALUES), "mul:0": np.zeros((3, 4), np.float32)}),
    }.items():
        try:
            found[name] = str(np.asarray(call()).dtype)
        except Exception as error:
            found[name] = type(error).__name__
    found["faults"] = session.faults
    if kind.trains:
        found["train"] = train(kind)
    return found


def train(kind: Kind) -> dict[str, Any]:
    """Gradients of a parameter of this kind, watched and not."""
    results = []
    for options in (tt.RunOptions(), options_of("DebugNumericSummary"), options_of("DebugIdentity")):
        module = Holder(kind.make(VALUES.nan_to_num(3.0)))

        def step(module: Holder = module) -> dict[str, Any]:
            module().backward()
            return {"grad": module.weight.grad}

        session = tt.torch.Session(step, modules={"module": module})
        with collect("walk") as records:
            results.append(outcome(kind, lambda s=session, o=options: s.run(None, None, o)["grad"]))
        if options is not None and any(r.debug_op == "DebugNumericSummary" for r in records):
            states = {n: state_of(records, n) for n in ("module/weight:0", "gradients/module/weight:0")}
        assert session.faults == 0
    return {"results": results, "states": states}


def _is_bad(record: Any) -> bool:
    if record.debug_op != "DebugNumericSummary":
        return False
    pill = np.frombuffer(record.data, np.float64)
    return bool(pill[2] or pill[3] or pill[7])


def main() -> None:
    warnings.simplefilter("ignore")
    faulthandler.enable()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    names = list(KINDS)
    for name in names[names.index(sys.argv[1]) :]:
        print(json.dumps({"trying": name}), flush=True)
        print(json.dumps({"kind": name, "found": walk(KINDS[name])}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
