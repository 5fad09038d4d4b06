"""Records and nodes to write, and a tiny engine that plays them through a publisher."""

from __future__ import annotations

import threading

import numpy as np

from tensortap.ops.view import TensorView
from tensortap.records import Node, Record, RunInfo, TensorSpec, device_name
from tensortap.seam.options import DebugOptions, DebugTensorWatch
from tensortap.sink.publisher import Publisher, as_record_data
from tests.patience import patient

CPU = device_name("cpu")


def record(name="x", value=(1.0,), debug_op="DebugIdentity", timestamp=1):
    array = np.asarray(value, np.float64 if debug_op == "DebugNumericSummary" else None)
    dtype, data = as_record_data(array)
    return Record(name, 0, debug_op, CPU, timestamp, dtype, array.shape, data)


def info(index=0, timestamp=1700000000000000):
    return RunInfo(index, index, timestamp + index)


NOTHING_SPECIAL = np.zeros(1, np.float32)


def node(name, value=NOTHING_SPECIAL):
    return Node(name, "aten::mul", outputs=(TensorSpec(value.dtype.name, value.shape),), device=CPU)


def play(values, watches, run_info=None, error=None, **options):
    """Run a "step" whose nodes have these values, as an engine does."""
    publisher = Publisher(DebugOptions(watches, **options), run_info or info())
    nodes = []
    for name, value in values.items():
        nodes.append(node(name, value))
        wanted = publisher.wants(nodes[-1], 0)
        if wanted is not None:
            publisher.publish(wanted, nodes[-1], 0, TensorView.of_numpy(value), CPU)
    publisher.finish(nodes, error)
    return publisher


def watch_all(url, *ops):
    return [DebugTensorWatch("*", -1, list(ops) or ["DebugIdentity"], [url])]


class Gate:
    """A job that waits until it is let through, to keep a writer busy."""

    def __init__(self):
        self.started, self.opened = threading.Event(), threading.Event()

    def __call__(self):
        self.started.set()
        assert self.opened.wait(patient(30))
