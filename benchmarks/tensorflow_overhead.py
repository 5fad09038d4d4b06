"""Measures what watching costs a training step in TensorFlow, as a ratio to the same step unwatched.

The step is that of peers/tensorflow_gpt.py, run by a session in graph mode, or with --function as a `tf.function`. All
variants run in one process on one model, a call of each in turn, so that drift of the machine hits them alike; `plain`
is measured twice, and the second one shows the noise. Ratios are of CPU time, and of wall time beside it. --peers adds
TensorFlow's own debugger (minutes), --memory 300 counts what that many watched runs leave behind. --public measures
what users call, wrapper sessions with all that they write, instead of the observer alone; --check tells how many of the
requested tensors are seen, and whether training is the same to the last bit. (The file cannot be called tensorflow.py:
the programs beside it would import it instead of TensorFlow.)

    python benchmarks/tensorflow_overhead.py --rounds 10
    python benchmarks/tensorflow_overhead.py --rounds 5 --public --check
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from peers.tensorflow_gpt import TrainingStep, make_batch

from tensortap.engines.tensorflow.observer import function_calls
from tensortap.engines.tensorflow.observer.choice import make_observer
from tensortap.engines.tensorflow.observer.interface import Armed, ExecutedGraph, Kind, Lane, Watch

v1 = tf.compat.v1
FLOATS = frozenset(["float16", "bfloat16", "float32", "float64"])
PROFILED_EVERY = 10  # runs; a user takes hundreds
PEER_MODES = ("FULL_HEALTH", "FULL_TENSOR")
WARM_UP_CALLS = 4  # until memory has been used once
Call = Callable[[Armed | None], Any]


# What is watched


def floats(graph: ExecutedGraph) -> list[bool]:
    return [dtype in FLOATS for node in graph.nodes for dtype in (*node.dtypes, *node.written)]


def one_tensor(graph: ExecutedGraph) -> list[bool]:
    wanted = next(node.name for node in graph.nodes if "MatMul" in node.op)
    return [graph.nodes[place].name == wanted and slot == 0 for place, slot in graph.outputs]


def make_watches(observer: Any, handed_over: list[Armed]) -> dict[str, Watch | None]:
    pill, value = [Lane(Kind.PILL)], [Lane(Kind.VALUE)]

    def hand_over() -> None:
        for armed in handed_over:
            armed.take()

    return {
        "plain": None,
        "plain again": None,
        "one tensor": observer.watch(pill, one_tensor),
        "health": observer.watch(pill, floats),
        "health, bad kept whole": observer.watch(pill, floats, keep_bad=8),
        "all values": observer.watch(value, floats, on_full=hand_over),
    }


# What is run


def as_session(threads: int, stack: ExitStack) -> tuple[Call, Any]:
    """The step as a graph that a session runs, and what a peer needs to run it."""
    stack.enter_context(tf.Graph().as_default())
    batch = make_batch()
    feeds = [v1.placeholder(tf.int32, part.shape) for part in batch]
    loss, updates = TrainingStep()(*feeds)
    fetches, fed = [loss, tf.group(*updates)], dict(zip(feeds, batch, strict=True))
    config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    session = stack.enter_context(v1.Session(config=config))
    session.run(v1.global_variables_initializer())

    def call(armed: Armed | None) -> Any:
        if armed is None:
            return session.run(fetches, fed)
        metadata = v1.RunMetadata()
        session.run(fetches, fed, options=armed.merge_into(), run_metadata=metadata)
        return armed.finish(metadata)

    return call, (session, fetches, fed)


def as_function(threads: int, stack: ExitStack) -> tuple[Call, Any]:
    """The step as a function that is called eagerly."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    function_calls.follow()
    step = TrainingStep()
    traced = tf.function(lambda tokens, targets: step(tokens, targets)[0])
    batch = [tf.constant(part) for part in make_batch()]

    def call(armed: Armed | None) -> Any:
        if armed is None:
            return traced(*batch).numpy()
        with armed.functions():
            traced(*batch).numpy()
        return armed.finish()

    return call, None


def make_public(context: Any, stack: ExitStack) -> dict[str, Callable[[], Any]]:
    """What users call, on the same session; what is written is on disk when a call is over."""
    import tensortap as tt

    session, fetches, fed = context
    folder = tempfile.mkdtemp(prefix="tensortap-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    matmul = [op.name for op in session.graph.get_operations() if "MatMul" in op.type][-1]  # of a gradient

    def dump(name: str, watch: Any) -> Dump:
        return Dump(session, fetches, fed, os.path.join(folder, name), watch)

    summary = "DebugNumericSummary"
    return {
        "wrapper, one tensor": dump("one", tt.WatchOptions(summary, node_name_regex_allowlist=f"^{matmul}$")),
        "wrapper, health": dump("health", tt.WatchOptions(summary, keep_bad=8)),
        "wrapper, values on disk": dump("values", tt.WatchOptions()),
        f"profile every {PROFILED_EVERY} runs": Profiled(
            session, fetches, fed, os.path.join(folder, "often")
        ),
        "profile, every run": Profiled(session, fetches, fed, os.path.join(folder, "always"), every=1),
    }


class Profiled:
    """Runs with a ProfilerHook that writes its traces; a call is as many runs as lie between two of them."""

    def __init__(self, session: Any, fetches: Any, fed: Any, root: str, every: int = PROFILED_EVERY) -> None:
        import tensortap as tt

        self._hook = tt.ProfilerHook(save_steps=every, output_dir=root)
        self._monitored = tt.MonitoredSession(tt.tensorflow.Session(session), hooks=[self._hook])
        self._arguments = fetches, fed
        self._root = root
        self.runs = every

    def __call__(self) -> None:
        before = self._traces()
        for _ in range(self.runs):
            self._monitored.run(*self._arguments)
        self._hook._writer.drain(60)
        assert self._traces() > before or not before, "a trace was written"

    def _traces(self) -> int:
        return sum(name.startswith("timeline-") for name in os.listdir(self._root))


class Dump:
    """A wrapper session that dumps, and empties its directory before the next run is measured: a disk has an end."""

    def __init__(self, session: Any, fetches: Any, fed: Any, root: str, watch: Any) -> None:
        import tensortap as tt

        self._wrapped = tt.DumpingDebugWrapperSession(session, root, watch)
        self._arguments = fetches, fed
        self._root = root

    def prepare(self) -> None:
        for name in os.listdir(self._root):
            if name.startswith("run_"):
                shutil.rmtree(os.path.join(self._root, name))

    def __call__(self) -> None:
        from tensortap.sink.queue import shared_queue

        self._wrapped.run(*self._arguments)
        shared_queue().drain(60)


def check(context: Any) -> None:
    """Completeness, and training to the last bit."""
    import tensortap as tt
    from tensortap.engines.tensorflow.executed import missing_reason
    from tensortap.engines.tensorflow.session import session_of
    from tensortap.reader.session_dir import SessionDir

    session, fetches, fed = context
    ops, waiting = {}, [getattr(each, "op", each) for each in fetches]
    while waiting:
        op = waiting.pop()
        if op.name not in ops:
            ops[op.name] = op
            waiting += [each.op for each in op.inputs] + list(op.control_inputs)
    requested = {
        f"{op.name}:{slot}"
        for op in ops.values()
        for slot, tensor in enumerate(op.outputs)
        if tensor.dtype.base_dtype.name not in ("resource", "variant")
    }
    variables = session.graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
    start = session.run(variables)

    def trained(run: Callable[..., Any]) -> list[bytes]:
        for variable, value in zip(variables, start, strict=True):
            session.run(variable.initializer, {variable.initializer.inputs[1]: value})
        losses = [run(fetches, fed)[0].tobytes() for _ in range(4)]
        return losses + [value.tobytes() for value in session.run(variables)]

    with tempfile.TemporaryDirectory() as folder:
        wrapped = tt.DumpingDebugWrapperSession(
            session, os.path.join(folder, "root"), tt.WatchOptions("DebugNumericSummary")
        )
        same = trained(wrapped.run) == trained(session.run)
        run = SessionDir(os.path.join(folder, "root")).run(0)
        seen = {f"{each.node_name}:{each.output_slot}" for each in run.dumped_tensor_data}
        ours = session_of(session)
        known = [
            graph
            for _, watch in ours.watches._kept.values()
            for graph in watch.graphs(range(len(watch.watch.graphs)))
        ]
        gone = sorted(requested - seen)
        reasons = [missing_reason(ours.graph, name.rpartition(":")[0], known) for name in gone]
    kinds: dict[str, int] = {}
    for reason in reasons:
        words = reason.partition(" '")[0] or "no reason"
        kinds[words] = kinds.get(words, 0) + 1
    print(
        f"{len(requested)} tensors requested, {len(requested & seen)} seen, {len(gone)} with a reason: {kinds}"
    )
    print(
        f"losses and {len(variables)} variables of 4 steps are {'the same' if same else 'NOT the same'} to the last bit"
    )


def make_peers(measured: Any, stack: ExitStack, only: str) -> dict[str, Callable[[], Any]]:
    """TensorFlow's own debugger on the same session."""
    from tensorflow.python.debug.lib.debug_utils import watch_graph
    from tensorflow.python.eager import context

    session, fetches, fed = measured

    def dump(debug_op: str) -> Callable[[], Any]:
        folder = tempfile.mkdtemp(prefix="tfdbg-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        options = v1.RunOptions()
        watch_graph(
            options, session.graph, [debug_op], [f"file://{folder}"], tolerate_debug_op_creation_failures=True
        )

        def run() -> None:
            session.run(fetches, fed, options=options)
            shutil.rmtree(folder)

        return run

    def dump_again(mode: str) -> Callable[[], Any]:
        """Its second version, which watches what is made while it is enabled: the step as a function."""
        folder = tempfile.mkdtemp(prefix="tfdbg2-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with context.eager_mode():
            writer = tf.debugging.experimental.enable_dump_debug_info(folder, mode, circular_buffer_size=-1)
            step = TrainingStep()
            traced = tf.function(lambda tokens, targets: step(tokens, targets)[0])
            batch = [tf.constant(part) for part in make_batch()]
            traced(*batch)

        def run() -> None:
            with context.eager_mode():
                traced(*batch).numpy()
            writer.FlushNonExecutionFiles()
            writer.FlushExecutionFiles()

        return run

    calls = {f"tfdbg {name}": dump(name) for name in ("DebugNumericSummary", "DebugIdentity")}
    mode = next((mode for mode in PEER_MODES if mode in only), PEER_MODES[0])  # a process can have one
    return calls | {f"tfdbg2 {mode}": dump_again(mode)}


# Measuring


def measure(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """CPU and wall seconds of each call."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
    names = list(calls)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            gc.collect()
            getattr(calls[name], "prepare", lambda: None)()
            cpu, wall = time.process_time(), time.perf_counter()
            calls[name]()
            runs = getattr(calls[name], "runs", 1)
            times[name][0].append((time.process_time() - cpu) / runs)
            times[name][1].append((time.perf_counter() - wall) / runs)
    return times


def show(times: dict[str, tuple[list[float], list[float]]]) -> None:
    print(f"{'':26}{'CPU':>8}{'min/min':>9}{'wall':>8}{'min/min':>9}{'ms':>9}")
    base = times["plain"]
    for name, pair in times.items():
        ratios = [
            ratio
            for own, plain in zip(pair, base, strict=True)
            for ratio in (statistics.median(own) / statistics.median(plain), min(own) / min(plain))
        ]
        milliseconds = 1000 * statistics.median(pair[1])
        print(
            f"{name:26}" + "".join(f"{r:{w}.2f}" for r, w in zip(ratios, (8, 9, 8, 9), strict=True)), end=""
        )
        print(f"{milliseconds:9.0f}")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def show_memory(call: Callable[[], Any], runs: int) -> None:
    for _ in range(20):
        call()
    gc.collect()
    before = resident()
    for _ in range(runs):
        call()
    gc.collect()
    print(f"{runs} watched runs left {(resident() - before) / 2**20:+.1f} MiB of {before / 2**20:.0f}")


def parse(arguments: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--function", action="store_true", help="as a tf.function instead of a session's graph"
    )
    parser.add_argument("--observer", default="auto", help="native or portable")
    parser.add_argument(
        "--only", default="", help="variants whose name contains one of these, with commas between"
    )
    parser.add_argument("--peers", action="store_true", help="TensorFlow's own debugger beside it")
    parser.add_argument(
        "--public", action="store_true", help="wrapper sessions instead of the observer alone"
    )
    parser.add_argument("--check", action="store_true", help="completeness and bits, after the figures")
    parser.add_argument("--memory", type=int, default=0, metavar="RUNS")
    return parser.parse_args(list(arguments))


def main() -> None:
    options = parse(sys.argv[1:])
    under_way: list[Armed] = []
    with ExitStack() as stack:
        call, context = (as_function if options.function else as_session)(options.threads, stack)
        watches = make_watches(make_observer(options.observer), under_way)

        def watched(watch: Watch | None) -> Any:
            under_way[:] = [] if watch is None else [watch.arm()]
            return call(under_way[0] if under_way else None)

        calls: dict[str, Callable[[], Any]] = {
            name: lambda w=watch: watched(w) for name, watch in watches.items()
        }
        if options.public:
            calls = {name: each for name, each in calls.items() if name.startswith("plain")}
            calls.update(make_public(context, stack))
        if options.peers and context is not None:
            calls.update(make_peers(context, stack, options.only))
        if options.only:
            parts = ("plain", *options.only.split(","))
            calls = {name: each for name, each in calls.items() if any(part in name for part in parts)}
        for name, each in calls.items():
            for _ in range(WARM_UP_CALLS):
                seen = each()
            if watches.get(name) is not None and not options.public:
                print(f"{name}: {sum(len(block.rows) for block in seen.blocks)} records", file=sys.stderr)
            del seen
        show(measure(calls, options.rounds))
        if options.memory:
            show_memory(calls["wrapper, health" if options.public else "health"], options.memory)
        if options.check:
            check(context)


if __name__ == "__main__":
    main()
