"""One small run with everything a dump can hold, for the tests of store and reader."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import ml_dtypes
import numpy as np

from tensortap.records import (
    RECORD_ROW,
    Frame,
    KeyTable,
    Node,
    Record,
    RecordBatch,
    RunInfo,
    TensorSpec,
    device_name,
)
from tensortap.store import RunWriter, SessionStore

CPU = device_name("cpu")
GPU = device_name("gpu")
START = 1_700_000_000_000_000
INFO = RunInfo(
    index=3,
    global_step=42,
    timestamp=START,
    fetches="['loss']",
    feed_keys="['x']",
    input_names=("x:0",),
    output_names=("loss:0",),
    target_nodes=("train",),
)


def record(node, value, *, slot=0, op="DebugIdentity", device=CPU, after=0, dtype=None):
    """A record of `value`, `after` microseconds into the run."""
    value = np.asarray(value)
    return Record(
        node,
        slot,
        op,
        device,
        START + after,
        dtype or value.dtype.name,
        value.shape,
        np.ascontiguousarray(value),
    )


def pill(node, *, nan=0, after=0, device=CPU, elements=4):
    values = np.array(
        [1, elements, nan, 0, 0, 0, elements - nan, 0, 1, 2, 1.5, 0.25, 1, 1, elements], np.float64
    )
    return record(node, values, op="DebugNumericSummary", after=after, device=device)


def batch_of(listed, table=None, *, alignment=64, gap=0, backwards=False):
    """The records as a batch, with their values laid out in one way of many."""
    table = KeyTable() if table is None else table
    rows = np.zeros(len(listed), RECORD_ROW)
    pieces, end = {}, 0
    for place in reversed(range(len(listed))) if backwards else range(len(listed)):
        each, value = listed[place], listed[place].data
        value = value.tobytes() if isinstance(value, np.ndarray) else bytes(value)
        start = -(-(end + gap) // alignment) * alignment
        key = table.add((each.node_name, each.output_slot, each.debug_op, each.device, each.dtype))
        rows[place] = (key, len(each.shape), each.timestamp, start, len(value), -1)
        rows[place]["dims"][: len(each.shape)] = each.shape
        pieces[start], end = value, start + len(value)
    data = bytearray(b"\xee") * end
    for start, value in pieces.items():
        data[start : start + len(value)] = value
    return RecordBatch(table, rows, data)


def nodes():
    """x, w → fc/addmm → split (two slots) → loss; train waits for loss; a copy of x on the GPU."""
    spec = (TensorSpec("float32", (2, 3)),)
    stack = (Frame("train.py", 3, "<module>"), Frame("train.py", 12, "step"))
    cpu = [
        Node("x", "Placeholder", outputs=spec, device=CPU),
        Node("w", "Variable", outputs=spec, device=CPU, stack=stack),
        Node("fc/addmm", "aten::addmm", ("x:0", "w:0"), outputs=spec, device=CPU, stack=stack),
        Node("split", "aten::split", ("fc/addmm:0",), outputs=spec * 2, device=CPU, attributes={"dim": 0}),
        Node("loss", "aten::sum", ("split:0", "split:1"), ("w",), outputs=spec, device=CPU, stack=stack),
        Node("train", "Optimizer", ("loss:0",), ("loss",), device=CPU),
    ]
    return {CPU: cpu, GPU: [Node("x", "Placeholder", outputs=spec, device=GPU)]}


def records():
    big = np.arange(600, dtype=np.float32).reshape(2, 300)
    return [
        record("x", [[1, 2, 3]], after=0, dtype="int64"),
        record("x", np.ones((2, 3), np.float32), after=1, device=GPU),
        record("w", big, after=2),
        record("fc/addmm", np.array([1.5, np.nan, -2], ml_dtypes.bfloat16), after=5),
        pill("fc/addmm", nan=1, after=5),
        record("split", np.zeros((0, 4), np.float16), after=9),
        Record("split", 1, "DebugIdentity", CPU, START + 9, "string", (2,), [b"ab", b"\xff\0"]),
        record("loss", np.float64(3.25), after=100),
        record("loss", np.float64(-np.inf), after=100),  # the same key in the same microsecond
        Record("train", 0, "DebugIdentity", CPU, START + 120, "float32", (4,), None, initialized=False),
        record("train", np.array([1, 2], ml_dtypes.float8_e4m3fn), slot=1, after=120),
        record("train", np.array([1 + 2j, np.nan]), slot=2, after=121),
    ]


def write_sample(root: Path, *, finish=True, info=INFO, devices=(CPU, GPU), batches=False) -> Path:
    """The run directory of the sample run, in a session root; what can be is in batches if asked for."""
    with SessionStore(root) as store, store.new_run(info) as run:
        listed = [each for each in records() if each.device in devices]
        table = KeyTable()
        for in_batch, some in groupby(listed, lambda each: each.dtype != "string" and each.initialized):
            if batches and in_batch:
                run.write_batch(batch_of(list(some), table))
            else:
                run.write_many(some)
        if finish:
            run.finish(
                {device: nodes()[device] for device in devices},
                {"records": len(records()), "dropped_budget": 0},
                sources=[__file__, "<string>"],
            )
    assert isinstance(run, RunWriter)
    return run.path
