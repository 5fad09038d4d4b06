"""How fast a session directory is written, opened and queried.

    python benchmarks/reader.py [--runs 10000] [--tensors 1000]

Prints a table with the target beside each number; medians of several repetitions. No framework is imported.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.records import Node, Record, RunInfo, device_name
from tensortap.store import SessionStore

CPU = device_name("cpu")
START = 1_700_000_000_000_000


def names(count):
    return [f"model/layers/{number // 10}/block/op_{number % 10}" for number in range(count)]


def median_seconds(repeat, action):
    times = []
    for _ in range(repeat):
        before = time.perf_counter()
        action()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def pills(listed):
    value = np.arange(16, dtype=np.float64)
    return [
        Record(name, 0, "DebugNumericSummary", CPU, START + place, "float64", (16,), value)
        for place, name in enumerate(listed)
    ]


def graph(listed):
    chain = [Node(listed[0], "aten::relu", device=CPU)]
    chain += [
        Node(name, "aten::relu", (f"{before}:0",), device=CPU) for before, name in itertools.pairwise(listed)
    ]
    return {CPU: chain}


def bench_one_run(root, count):
    listed = names(count)
    with SessionStore(root) as store, store.new_run(RunInfo(0, 0, START)) as run:
        for record in pills(listed):
            run.write(record)
        run.finish(graph(listed), {})
    DebugDumpDir(run.path)  # imports the message classes once

    def open_and_list():
        assert [str(datum) for datum in DebugDumpDir(run.path).dumped_tensor_data]

    yield (
        f"open {count:,} tensors and list them, validated",
        median_seconds(11, open_and_list) * 1e3,
        "ms",
        50,
    )
    unvalidated = median_seconds(11, lambda: DebugDumpDir(run.path, validate=False).size)
    yield f"open {count:,} tensors, not validated", unvalidated * 1e3, "ms", 50


def bench_writing(root):
    records = pills(names(2000))
    with SessionStore(root) as store:
        with store.new_run(RunInfo(0, 0, START)) as run:
            each = median_seconds(5, lambda: [run.write(record) for record in records])
        with store.new_run(RunInfo(1, 0, START)) as run:
            many = median_seconds(5, lambda: run.write_many(records))
        yield "pills written one by one", len(records) / each, "/s", 100_000
        yield "pills written in batches of 2,000", len(records) / many, "/s", 100_000
        big = np.ones(1 << 24, np.float32)
        large = Record("big", 0, "DebugIdentity", CPU, START, "float32", big.shape, memoryview(big).cast("B"))
        with store.new_run(RunInfo(2, 0, START)) as run:
            seconds = median_seconds(5, lambda: run.write(large))
        yield "values of 64 MB written", big.nbytes / seconds / 1e6, "MB/s", None
        run.abandon()


def bench_history(root, runs, tensors):
    listed = pills(names(tensors))
    with SessionStore(root) as store:
        finishing = []
        for index in range(runs):
            with store.new_run(RunInfo(index, index, START + index)) as run:
                run.write_many(listed)
                before = time.perf_counter()
                run.finish({}, {})
                finishing.append(time.perf_counter() - before)
    yield f"finish a run of {tensors} pills, median", statistics.median(finishing) * 1e3, "ms", None
    yield f"finish a run of {tensors} pills, slowest", max(finishing) * 1e3, "ms", None
    name = listed[tensors // 2].tensor_name
    session = SessionDir(root)
    assert len(session.history(name)) == runs
    yield f"one tensor over {runs:,} runs", median_seconds(7, lambda: session.history(name)) * 1e3, "ms", 100
    fresh = median_seconds(5, lambda: SessionDir(root).history(name))
    yield f"the same, listing the {runs:,} runs first", fresh * 1e3, "ms", None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--tensors", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        print(f"{'what':48} {'measured':>14} {'target':>12}")
        for rows in (
            bench_one_run(root / "one", options.tensors),
            bench_writing(root / "writing"),
            bench_history(root / "history", options.runs, 20),
        ):
            for what, number, unit, target in rows:
                said = "" if target is None else f"{target:,} {unit}"
                print(f"{what:48} {number:11,.1f} {unit:4} {said:>10}", flush=True)


if __name__ == "__main__":
    main()
