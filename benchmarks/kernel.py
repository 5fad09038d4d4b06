"""Measures the numeric kernel: nanoseconds per element by dtype, and microseconds per call on a tiny tensor.

Each number is the best of several rounds in time of one thread: what the machine can do, not what its
neighbours left.
'in cache' is a tensor of 64 KiB, 'out of cache' one of at least 128 MiB. PyTorch's column is the same eleven
numbers made with its own reductions. The budget of the native kernel is 0.4 ns per float32 out of cache.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ml_dtypes
import numpy as np

from tensortap.ops import DebugNumericSummary, TensorView, kernel, numpy_kernel
from tensortap.ops.dtypes import CODES

IN_CACHE_BYTES = 1 << 16
OUT_OF_CACHE_BYTES = 1 << 27
# Slow implementations see a part of the large tensor; their time per element is the same.
SLOW_ELEMENTS = 1 << 22


def best(call: Callable[[], object], rounds: int, at_least: float = 0.005) -> float:
    """Seconds of one call: the fastest round, each long enough for the clock."""
    repeats = 1
    while True:
        start = time.thread_time()
        for _ in range(repeats):
            call()
        spent = time.thread_time() - start
        if spent >= at_least:
            break
        repeats *= 4
    fastest = spent / repeats
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(repeats):
            call()
        fastest = min(fastest, (time.thread_time() - start) / repeats)
    return fastest


def workloads(size: int) -> dict[str, np.ndarray]:
    """The arrays by row name; `size` is in bytes."""
    values = np.random.default_rng(0).standard_normal(size // 4, dtype=np.float32)
    special = values.copy()
    special[::100] = np.nan
    return {
        "float32": values,
        "float32 all NaN": np.full(size // 4, np.nan, np.float32),
        "float32 1% NaN": special,
        "float32 transposed": values.reshape(-1, 64).T,
        "float32 every 2nd": np.repeat(values[: size // 8], 2)[::2],
        "bfloat16": np.resize(values, size // 2).astype(ml_dtypes.bfloat16),
        "float16": np.resize(values, size // 2).astype(np.float16),
        "float8_e4m3fn": np.resize(values, size // 2).astype(ml_dtypes.float8_e4m3fn),
        "float64": values[: size // 8].astype(np.float64),
        "int32": values.astype(np.int32),
        "int64": values[: size // 8].astype(np.int64),
        "complex64": values.view(np.complex64),
    }


def torch_summary(array: np.ndarray) -> Callable[[], object] | None:
    """The same reductions with PyTorch, if it is installed."""
    try:
        import torch

        from tensortap.engines.torch.reduce import DeviceSummaries
    except ImportError:
        return None
    torch.set_num_threads(1)
    if array.dtype.kind == "V":
        bits = np.int16 if array.itemsize == 2 else np.uint8
        tensor = torch.from_numpy(array.view(bits)).view(getattr(torch, array.dtype.name))
    else:
        tensor = torch.from_numpy(array)

    def call() -> object:
        summaries = DeviceSummaries()
        summaries.add(tensor)
        return summaries.collect()

    return call


def ns(seconds: float, array: np.ndarray) -> str:
    return f"{seconds / array.size * 1e9:.2f}"


def per_element(rounds: int, quick: bool) -> list[list[str]]:
    rows = []
    small = workloads(IN_CACHE_BYTES)
    large = workloads(OUT_OF_CACHE_BYTES >> (4 if quick else 0))
    for name, array in large.items():
        print(f"  {name}", file=sys.stderr)
        part = array.reshape(-1)[:SLOW_ELEMENTS] if array.flags.c_contiguous else array
        near, far, slow = map(TensorView.of_numpy, (small[name], array, part))
        by_torch = torch_summary(part)
        rows.append(
            [
                name,
                ns(best(lambda view=near: kernel.summary(view), rounds), small[name]),
                ns(best(lambda view=far: kernel.summary(view), rounds), array),
                ns(best(lambda view=slow: numpy_kernel.summary(view, -math.inf, math.inf), 1), part),
                "-" if by_torch is None else ns(best(by_torch, 1), part),
            ]
        )
    return rows


def per_call(rounds: int) -> list[list[str]]:
    array = np.ones(16, np.float32)
    view = TensorView.of_numpy(array)
    op = DebugNumericSummary()
    calls: dict[str, Callable[[], object]] = {}
    native = kernel.native()
    if native is not None:
        out = np.empty(15)
        arguments = (view.address, CODES["float32"], view.shape, view.strides, -math.inf, math.inf)
        calls["native().summary, into a buffer"] = lambda: native.summary(*arguments, out)
        calls["native().summary, to an address"] = lambda: native.summary(*arguments, out_address)
        out_address = out.ctypes.data
    calls["kernel.summary(view)"] = lambda: kernel.summary(view)
    calls["DebugNumericSummary().apply(view)"] = lambda: op.apply(view)
    calls["numpy_kernel.summary"] = lambda: numpy_kernel.summary(view, -math.inf, math.inf)
    by_torch = torch_summary(array)
    if by_torch is not None:
        calls["PyTorch reductions"] = by_torch
    rows = []
    for name, call in calls.items():
        print(f"  {name}", file=sys.stderr)
        rows.append([name, f"{best(call, rounds) * 1e6:.2f}"])
    return rows


def show(header: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="8 MiB instead of 128 MiB")
    arguments = parser.parse_args()
    print(f"kernel: {kernel.isa()}", file=sys.stderr)
    elements = per_element(arguments.rounds, arguments.quick)
    tiny = per_call(arguments.rounds)
    show([f"ns per element ({kernel.isa()})", "in cache", "out of cache", "NumPy", "PyTorch"], elements)
    print()
    show(["µs per call, 16 float32", "µs"], tiny)


if __name__ == "__main__":
    main()
