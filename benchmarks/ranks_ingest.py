"""Measures what one debug server takes from many ranks: records per second, its memory, what is dropped, and how fair.

Ranks are simulated, many to a process, each with a sender and a queue of its own. A run of a rank is what a step of gpt
sends: the health pills of 1,000 tensors, in batches. Everything shares the cores of this machine, so that clients take
from the server what they would not take from elsewhere.

1. As fast as the server takes it: a rank waits for room (`max_wait_secs`), as no training would. Nothing is lost.
2. As training does it: a rank never waits, and begins a run every so often, whatever has arrived. What does not fit
   into its queue is dropped and counted.

    python benchmarks/ranks_ingest.py                       1, 16, 64 and 256 ranks
    python benchmarks/ranks_ingest.py --ranks 64 --seconds 5
    python benchmarks/ranks_ingest.py --root /dev/shm       without the disk
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stream
from stream import PILLS_PER_BATCH, pills, serving

PILLS_PER_RUN = 1000
MOST_PROCESSES = 4
PATIENCE_SECS = 120


def ingest(ranks: int, seconds: float, pause: float | None) -> dict[str, Any]:
    """What arrives from so many ranks; with a pause, each begins a run every so many seconds and never waits."""
    with serving() as server:
        before = server.resident_mb
        context = multiprocessing.get_context("spawn")
        number = min(ranks, MOST_PROCESSES)
        shares = [range(first, ranks, number) for first in range(number)]
        ready, results = context.Barrier(number + 1), context.Queue()
        processes = [
            context.Process(target=be_ranks, args=(server.address, share, seconds, pause, ready, results))
            for share in shares
        ]
        for process in processes:
            process.start()
        ready.wait(PATIENCE_SECS)
        start = time.perf_counter()
        told = [each for _ in processes for each in results.get()]
        took = time.perf_counter() - start
        for process in processes:
            process.join()
        made, arrived = (sum(each[place] for each in told) for place in (1, 2))
        shares_arrived = [arrived_here / made_here for _, made_here, arrived_here in told if made_here]
        return {
            "ranks": ranks,
            "pause": pause,
            "records_per_second": arrived / took,
            "made": made,
            "dropped": made - arrived,
            "least_of_a_rank": min(shares_arrived),
            "fewest": min(each[2] for each in told),
            "most": max(each[2] for each in told),
            "server_mb_before": before,
            "server_mb_peak": server.peak_mb,
        }


def be_ranks(
    address: str, ranks: Sequence[int], seconds: float, pause: float | None, ready: Any, results: Any
) -> None:
    """Several ranks in one process, a thread each."""
    from tensortap.records import KeyTable

    table = KeyTable()
    batches = [pills(table, start) for start in range(0, PILLS_PER_RUN, PILLS_PER_BATCH)]
    told: list[tuple[int, int, int]] = []
    begin = threading.Event()
    threads = [
        threading.Thread(target=be_rank, args=(address, rank, seconds, pause, batches, begin, told))
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE_SECS)
    begin.set()
    for thread in threads:
        thread.join()
    results.put(told)


def be_rank(
    address: str,
    rank: int,
    seconds: float,
    pause: float | None,
    batches: Sequence[Any],
    begin: threading.Event,
    told: list[tuple[int, int, int]],
) -> None:
    """One rank: run after run, then wait for the last of them."""
    from tensortap.records import RunInfo
    from tensortap.sink.base import RunEnd
    from tensortap.sink.grpc import GrpcSink
    from tensortap.sink.stream_options import StreamOptions

    # Those who stream in the same way share a sender; so no two ranks do.
    options = StreamOptions(
        max_queue_bytes=(4 << 20) + rank,
        max_wait_secs=PATIENCE_SECS if pause is None else 0,
        flush_secs=PATIENCE_SECS,
        stall_timeout_secs=PATIENCE_SECS,
        connect_timeout_secs=PATIENCE_SECS,
    )
    url, sinks = f"grpc://{address}/bench", []
    begin.wait()
    start = time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        sink = GrpcSink(url, RunInfo(len(sinks), len(sinks), time.time_ns() // 1000, rank), options)
        for batch in batches:
            sink.write_batch(batch)
        sink.finish(RunEnd())
        sinks.append(sink)
        if pause is not None:
            time.sleep(max(0.0, now + pause - time.perf_counter()))
    sinks[-1].flush(PATIENCE_SECS)
    told.append((rank, PILLS_PER_RUN * len(sinks), sum(sink.counts.written for sink in sinks)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 16, 64, 256], metavar="N")
    parser.add_argument("--seconds", type=float, default=5, metavar="S", help="of each load (%(default)s)")
    parser.add_argument(
        "--pause", type=float, default=1.0, metavar="S", help="of a step of training (%(default)s)"
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="where the server writes; /dev/shm leaves the disk out of it"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args(arguments)
    stream.ROOT = options.root
    figures = []
    print("ranks  how            records/s    dropped      a rank got        server MB (before)")
    for ranks in options.ranks:
        for pause in (None, options.pause):
            row = ingest(ranks, options.seconds, pause)
            figures.append(row)
            how = "waiting" if pause is None else f"every {pause:g} s"
            print(
                f"{row['ranks']:5}  {how:12} {row['records_per_second']:11,.0f}  {row['dropped']:9,} "
                f"{row['dropped'] / row['made']:4.0%}  {row['fewest']:7,}–{row['most']:<7,}  "
                f"{row['server_mb_peak']:6.0f} ({row['server_mb_before']:.0f})",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
