"""A session of many runs for `benchmarks/page.py`, written by the store that training uses."""

from __future__ import annotations

import sys

import numpy as np

from tensortap.records import RECORD_ROW, KeyTable, Node, RecordBatch, RunInfo, TensorSpec
from tensortap.store import SessionStore

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
START = 1_700_000_000_000_000
PILL = 15
OPS = ("addmm", "softmax", "mul", "add", "native_layer_norm", "gelu", "bmm", "sum")


def make_session(root: str, runs: int, tensors: int) -> None:
    """Write the session: gradients that vanish, and in the last tenth a NaN that spreads."""
    random = np.random.default_rng(0)
    nodes = _nodes(tensors)
    table, rows = KeyTable(), np.zeros(tensors, RECORD_ROW)
    rows["key"] = [table.add((node.name, 0, "DebugNumericSummary", CPU, "float64")) for node in nodes]
    rows["rank"], rows["nbytes"] = 1, 8 * PILL
    rows["dims"][:, 0] = PILL
    rows["offset"] = np.arange(tensors) * 8 * PILL
    with SessionStore(root) as store:
        for number in range(runs):
            began = START + 100_000 * number
            with store.new_run(RunInfo(number, number, began)) as run:
                batch = rows.copy()
                batch["timestamp"] = began + 1 + np.arange(tensors)
                run.write_batch(RecordBatch(table, batch, _pills(tensors, number, runs, random)))
                run.finish({CPU: nodes}, {"records": tensors})


def _nodes(count: int) -> list[Node]:
    """Forward and backward pass of a transformer."""
    nodes: list[Node] = []
    layer = 0
    while len(nodes) < count // 2:
        for part in ("attn", "mlp", "norm"):
            for op in OPS:
                before = (nodes[-1].tensor(0),) if nodes else ()
                name, module = f"model/layers/{layer}/{part}/{op}", f"model/layers/{layer}/{part}"
                nodes.append(_node(name, f"aten::{op}", before, "forward", module))
        layer += 1
    forward = nodes[: count - count // 2]
    backward = [
        _node(
            f"gradients/{node.name}/{node.name.rpartition('/')[2]}_backward",
            f"{node.op_type}_backward",
            (node.tensor(0),),
            "backward",
            node.module,
            forward=node.name,
        )
        for node in reversed(forward)
    ]
    return [*forward, *backward][:count]


def _node(name, op, inputs, phase, module, forward=None):
    outputs = (TensorSpec("float32", (64, 64)),)
    return Node(name, op, inputs, device=CPU, outputs=outputs, phase=phase, module=module, forward=forward)


def _pills(tensors: int, run: int, runs: int, random: np.random.Generator) -> np.ndarray:
    values = np.zeros((tensors, PILL))
    depth = np.maximum(np.arange(tensors) - tensors // 2, 0) / tensors  # of the backward pass
    size = 10 ** (random.normal(0, 0.05, tensors) - 12 * (run / runs) * depth)
    values[:, 0], values[:, 1], values[:, 4], values[:, 5], values[:, 6] = 1, 4096, 2000, 96, 2000
    values[:, 8], values[:, 9], values[:, 11] = -size, size, size**2 / 3
    values[:, 12], values[:, 13], values[:, 14] = 1, 1, 4096
    start = runs * 9 // 10
    if run > start:
        reached = int(tensors // 2 * min(1.0, (run - start) / (runs - start) * 1.5))
        first = tensors // 2 - tensors // 20
        values[first : first + reached, 2] = 7
    return values


if __name__ == "__main__":
    make_session(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
