"""Measures the checksums of values: GB/s of each way by size, and what they add to writing.

Times are those of one thread, the best of several rounds. Writing is to a directory of its own, 64 values of the
size in one batch: in the page cache, as a training run writes them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tensortap.records import RECORD_ROW, KeyTable, RecordBatch, RunInfo
from tensortap.store import SessionStore, batch, checksum

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
VALUES = 64


def best(call: Callable[[], object], rounds: int) -> float:
    """Seconds of this thread for one call."""
    call()
    fastest = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        call()
        fastest = min(fastest, time.thread_time() - start)
    return fastest


def ways() -> dict[str, Callable[[bytes], int]]:
    """Every way to make a checksum here."""
    found: dict[str, Callable[[bytes], int]] = {}
    native = checksum._native()
    if native is not None:
        for isa in dict.fromkeys((native.isa(), "portable")):

            def make(data: bytes, isa: str = isa) -> int:
                native.use_isa(isa)
                return int(native.crc32c(data))

            found[f"crc32c, {isa}"] = make
    found["crc32 of zlib"] = zlib.crc32
    found["crc32c, numpy"] = lambda data: checksum._crc32c_of(np.frombuffer(data, np.uint8))
    return found


def one_batch(size: int) -> RecordBatch:
    """`VALUES` values of `size` bytes."""
    table = KeyTable()
    rows = np.zeros(VALUES, RECORD_ROW)
    for place in range(VALUES):
        key = table.add((f"n{place}", 0, "DebugIdentity", "/device:CPU:0", "uint8"))
        rows[place] = (key, 1, place, place * size, size, -1)
        rows[place]["dims"][0] = size
    return RecordBatch(
        table, rows, np.random.default_rng(0).integers(0, 256, VALUES * size, np.uint8).tobytes()
    )


def written(values: RecordBatch, rounds: int) -> float:
    """Seconds to write a batch."""

    def write() -> None:
        root = Path(tempfile.mkdtemp())
        try:
            with SessionStore(root) as store, store.new_run(RunInfo(0, 0, 1)) as run:
                start = time.thread_time()
                run.write_batch(values)
                spent.append(time.thread_time() - start)
        finally:
            shutil.rmtree(root)

    spent: list[float] = []
    for _ in range(rounds):
        write()
    return min(spent)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    rounds = parser.parse_args().rounds
    native, chosen = checksum._native(), checksum.isa()
    print(f"{'GB/s':<18}" + "".join(f"{size >> 10:>9} KiB" for size in SIZES))
    for name, make in ways().items():
        speeds = []
        for size in SIZES:
            data = bytes(size)
            repeats = max(1, (1 << 22) // size)
            seconds = best(lambda data=data, n=repeats: [make(data) for _ in range(n)], rounds)  # noqa: B023
            speeds.append(size * repeats / seconds / 1e9)
        print(f"{name:<18}" + "".join(f"{speed:>13.2f}" for speed in speeds))
    if native is not None:
        native.use_isa(chosen)
    print(f"\n{'writing, GB/s':<18}{'without':>10}{'with':>10}{'time':>9}")
    for size in SIZES[:-1]:
        values = one_batch(size)
        with_it = written(values, rounds)
        made, batch.checksums = batch.checksums, lambda algorithm, memory, offsets, sizes: 0
        without = written(values, rounds)
        batch.checksums = made
        total = VALUES * size / 1e9
        label = f"{size >> 10} KiB"
        print(f"{label:<18}{total / without:>10.2f}{total / with_it:>10.2f}{with_it / without:>9.2f}")


if __name__ == "__main__":
    main()
