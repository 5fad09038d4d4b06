"""Measures streaming to a debug server: what it costs a training step, and what the server takes in.

The server runs in a process of its own on the same cores, as it would beside a training job on one machine.

1. The gpt step with the numeric summary of every float output streamed, as a ratio to the same step alone: to a
   server that is well, to an address where nobody listens, and to a server that was stopped (SIGSTOP). Streaming
   goes on behind the step, so single steps cannot be compared. Blocks of steps can: a block includes the time
   until everything has arrived or was given up. Blocks of the variants take turns.
2. Numeric summaries per second that the server writes to its session directories, from several client processes
   at once, and what that does to its memory.
3. Megabytes of values per second, from one client.

    python benchmarks/stream.py                     everything, about two minutes
    python benchmarks/stream.py --only ingest       one part: step, ingest or values
    python benchmarks/stream.py --only values --root /dev/shm       without the disk
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], object]
SERVE = """
import signal, sys
from tensortap.server import DebugServer
from tensortap.server.memory import reuse_memory
reuse_memory()  # as `tensortap serve` does
server = DebugServer(sys.argv[1], http_port=None, max_bytes=int(sys.argv[2])).start()
print(server.address, flush=True)
signal.pause()
"""
DISK_BYTES = 4 << 30
PILLS_PER_RUN = 4000
PILLS_PER_BATCH = 500


@dataclass
class Server:
    """A debug server in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    @property
    def resident_mb(self) -> float:
        """Memory it has now."""
        return self._status("VmRSS")

    @property
    def peak_mb(self) -> float:
        """The most it ever had."""
        return self._status("VmHWM")

    def _status(self, field: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
        raise LookupError(field)


ROOT: Path | None = None
"""Where servers write; the directory for temporary files by default."""


@contextmanager
def serving() -> Iterator[Server]:
    """A server that writes to a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="tensortap-bench-", dir=ROOT) as root:
        program = [sys.executable, "-c", SERVE, root, str(DISK_BYTES)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield Server(process, process.stdout.readline().strip())
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.terminate()
            process.wait()
            process.stdout.close()


# 1. What a step costs


def step_ratios(rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Ratio of a block of steps to the same block alone, by variant, with its quartiles."""
    import torch
    from workloads import WORKLOADS

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    with ExitStack() as stack:
        workload = WORKLOADS["gpt"]()
        plain: Call = lambda: workload.step(**workload.batch)  # noqa: E731
        well, stopped = (stack.enter_context(serving()) for _ in range(2))
        variants: dict[str, tuple[Call, Call]] = {
            "plain": (plain, lambda: None),
            "plain again (noise)": (plain, lambda: None),
            "streamed": streaming(workload, stack, well.address),
            "nobody listens": streaming(workload, stack, f"localhost:{free_port()}"),
            "server stopped": streaming(workload, stack, stopped.address),
        }
        for call, finish in variants.values():
            for _ in range(3):
                call()
            finish()
        os.kill(stopped.process.pid, signal.SIGSTOP)
        return ratios(variants, rounds, steps)


def streaming(workload: Any, stack: ExitStack, address: str) -> tuple[Call, Call]:
    """The step with every summary streamed, and what waits for the last of them."""
    import tensortap as tt

    engine = stack.enter_context(
        tt.torch.Session(workload.step, modules=workload.modules, optimizers=workload.optimizers)
    )
    watch = tt.WatchOptions("DebugNumericSummary", tensor_dtype_regex_allowlist=r"b?float")
    hook = tt.GrpcDebugHook(address, lambda fetches, feeds: watch, stream=tt.StreamOptions(flush_secs=1))
    running = stack.enter_context(tt.MonitoredSession(engine, hooks=[hook]))
    return lambda: running.run(None, feed_dict=workload.batch), lambda: hook.flush(20)


def ratios(variants: dict[str, tuple[Call, Call]], rounds: int, steps: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for number in range(rounds):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            call, finish = variants[name]
            start = time.perf_counter()
            for _ in range(steps):
                call()
            if name == "streamed":
                finish()
            times[name].append(time.perf_counter() - start)
    found = {}
    for name, mine in times.items():
        each = [a / b for a, b in zip(mine, times["plain"], strict=True)]
        low, middle, high = statistics.quantiles(each, n=4, method="inclusive")
        milliseconds = statistics.median(mine) / steps * 1e3
        found[name] = {"ratio": middle, "low": low, "high": high, "ms_per_step": milliseconds}
    return found


# 2. and 3. What the server takes in


def ingest(clients: int, seconds: float) -> dict[str, float]:
    """Summaries per second from several processes at once."""
    with serving() as server:
        before = server.resident_mb
        context = multiprocessing.get_context("spawn")
        ready, results = context.Barrier(clients + 1), context.Queue()
        processes = [
            context.Process(target=send_pills, args=(server.address, number, seconds, ready, results))
            for number in range(clients)
        ]
        for process in processes:
            process.start()
        ready.wait(60)
        start = time.perf_counter()
        sent = [results.get() for _ in processes]
        took = time.perf_counter() - start
        for process in processes:
            process.join()
        made, arrived = (sum(each[place] for each in sent) for place in (0, 1))
        return {
            "clients": clients,
            "pills_per_second": arrived / took,
            "made": made,
            "lost": made - arrived,
            "server_mb_before": before,
            "server_mb_peak": server.peak_mb,
            "server_mb_after": server.resident_mb,
        }


def send_pills(address: str, number: int, seconds: float, ready: Any, results: Any) -> None:
    """Run after run of summaries, as fast as the server takes them."""
    from tensortap.records import KeyTable, RunInfo
    from tensortap.sink.base import RunEnd
    from tensortap.sink.grpc import GrpcSink
    from tensortap.sink.stream_options import StreamOptions

    options = StreamOptions(max_queue_bytes=32 << 20, max_wait_secs=60, flush_secs=60)
    table = KeyTable()
    batches = [pills(table, start) for start in range(0, PILLS_PER_RUN, PILLS_PER_BATCH)]
    sinks = []

    def run() -> None:
        now = time.time_ns() // 1000
        sink = GrpcSink(f"grpc://{address}", RunInfo(len(sinks), len(sinks), now, number), options, "bench")
        for batch in batches:
            sink.write_batch(batch)
        sink.finish(RunEnd())
        sinks.append(sink)

    run()
    sinks[0].flush()
    ready.wait(60)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        run()
    sinks[-1].flush(60)
    measured = sinks[1:]
    results.put((PILLS_PER_RUN * len(measured), sum(sink.counts.written for sink in measured)))


def pills(table: Any, start: int) -> Any:
    """A batch as the native interceptor makes it."""
    from tensortap.records import RECORD_ROW, RecordBatch

    rows = np.zeros(PILLS_PER_BATCH, RECORD_ROW)
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    rows["key"] = [
        table.add(
            (f"model/blocks/{number % 12}/attention/op_{number}", 0, "DebugNumericSummary", device, "float64")
        )
        for number in range(start, start + PILLS_PER_BATCH)
    ]
    rows["rank"], rows["nbytes"], rows["dims"][:, 0] = 1, 17 * 8, 17
    rows["timestamp"] = time.time_ns() // 1000
    rows["offset"] = np.arange(PILLS_PER_BATCH) * 17 * 8
    values = np.random.default_rng(start).random((PILLS_PER_BATCH, 17))
    values[:, :8] = [1, 4096, 0, 0, 2000, 96, 2000, 0]
    return RecordBatch(table, rows, values)


def values_per_second(seconds: float, value_mb: int) -> dict[str, float]:
    """Megabytes of whole values per second from one process."""
    from tensortap.records import Record, RunInfo
    from tensortap.sink.base import RunEnd
    from tensortap.sink.grpc import GrpcSink
    from tensortap.sink.stream_options import StreamOptions

    value = np.random.default_rng(0).random(value_mb << 18, np.float32)
    options = StreamOptions(max_wait_secs=60, flush_secs=60)
    with serving() as server:
        url, total, lost = f"grpc://{server.address}", 0, 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            sink = GrpcSink(url, RunInfo(0, 0, time.time_ns() // 1000), options)
            for number in range(max(1, 256 // value_mb)):
                sink.write(
                    Record(
                        f"w{number}", 0, "DebugIdentity", "/device:CPU:0", 1, "float32", value.shape, value
                    )
                )
            sink.finish(RunEnd())
            sink.flush()
            total += sink.counts.written_bytes
            lost += sink.counts.lost
        took = time.perf_counter() - start
        return {
            "value_mb": value_mb,
            "mb_per_second": total / took / 1e6,
            "lost": lost,
            "server_mb_peak": server.peak_mb,
        }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# Output


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["step", "ingest", "values"], help="one part instead of all")
    parser.add_argument(
        "--rounds", type=int, default=12, metavar="N", help="blocks of steps (default %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=10, metavar="N", help="steps of a block (default %(default)s)"
    )
    parser.add_argument("--clients", type=int, default=3, metavar="N", help="processes (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, metavar="S", help="of each load (default %(default)s)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to FILE, replacing it"
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="where the server writes; /dev/shm leaves the disk out of it"
    )
    options = parser.parse_args(arguments)
    global ROOT
    ROOT = options.root
    figures: dict[str, Any] = {}
    if options.only in (None, "step"):
        figures["step"] = step_ratios(options.rounds, options.steps)
        print(f"{'gpt step':22}{'ms/step':>9}  ratio  quartiles")
        for name, row in figures["step"].items():
            print(
                f"{name:22}{row['ms_per_step']:9.2f}  {row['ratio']:5.2f}  {row['low']:.2f}–{row['high']:.2f}"
            )
    if options.only in (None, "ingest"):
        found = figures["ingest"] = ingest(options.clients, options.seconds)
        print(
            f"ingest, {options.clients} clients: {found['pills_per_second']:,.0f} summaries/s, {found['lost']:,} of "
            f"{found['made']:,} lost; server {found['server_mb_before']:.0f} MB before, "
            f"{found['server_mb_peak']:.0f} MB at most, {found['server_mb_after']:.0f} MB after"
        )
    if options.only in (None, "values"):
        figures["values"] = [values_per_second(options.seconds / 2, size) for size in (1, 16)]
        for found in figures["values"]:
            print(
                f"values of {found['value_mb']} MB: {found['mb_per_second']:,.0f} MB/s, {found['lost']} lost; server "
                f"{found['server_mb_peak']:.0f} MB at most"
            )
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
