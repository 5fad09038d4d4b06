"""tfdbg and tfdbg2, on the same training step in TensorFlow."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from peers import HEALTH, VALUES, Call, Peer, Watching, empty_folder, make_folder, newest_in

# tfdbg: a graph that a session runs


def start_graph(threads: int, stack: ExitStack) -> tuple[Any, Call]:
    """The step as a graph, and a function that opens a session for it."""
    import tensorflow as tf

    from peers.tensorflow_gpt import TrainingStep, make_batch

    v1 = tf.compat.v1
    stack.enter_context(tf.Graph().as_default())
    tokens, targets = make_batch()
    feeds = [v1.placeholder(tf.int32, part.shape) for part in (tokens, targets)]
    loss, updates = TrainingStep()(*feeds)
    train = tf.group(*updates)
    config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)

    def open_session(hooks: list[Any]) -> Call:
        creator = v1.train.ChiefSessionCreator(config=config)
        session = stack.enter_context(v1.train.MonitoredSession(creator, hooks=hooks))
        return lambda: session.run([loss, train], dict(zip(feeds, (tokens, targets), strict=True)))

    return open_session, open_session([])


def open_tfdbg(open_session: Any, stack: ExitStack, debug_op: str) -> Watching:
    """A hook that dumps every tensor of the graph through the given debug op."""
    from tensorflow.python.debug import DumpingDebugHook
    from tensorflow.python.debug.lib.debug_data import DebugDumpDir
    from tensorflow.python.debug.wrappers.framework import WatchOptions

    folder = make_folder(stack)
    # Without the tolerance, the first tensor that the op has no kernel for ends the run.
    options = WatchOptions(debug_ops=[debug_op], tolerate_debug_op_creation_failures=True)
    call = open_session([DumpingDebugHook(str(folder), watch_fn=lambda fetches, feeds: options)])

    def count_records() -> int:
        return DebugDumpDir(str(newest_in(folder))).size

    return Watching(call, count_records, folder, clean=partial(empty_folder, folder))


# tfdbg2: a tf.function


def start_function(threads: int, stack: ExitStack) -> tuple[Any, Call]:
    """The step as a function to trace, and its unwatched trace."""
    import tensorflow as tf

    from peers.tensorflow_gpt import TrainingStep, make_batch

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    step = TrainingStep()
    batch = [tf.constant(part) for part in make_batch()]

    def trace() -> Call:
        traced = tf.function(lambda tokens, targets: step(tokens, targets)[0])
        return lambda: traced(*batch).numpy()

    unwatched = trace()
    unwatched()  # traced before tfdbg2 is enabled, it stays as it is
    return trace, unwatched


def open_tfdbg2(trace: Any, stack: ExitStack, mode: str) -> Watching:
    """Functions traced from now on record every tensor."""
    import tensorflow as tf
    from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

    folder = make_folder(stack)
    # The default buffer keeps the last 1,000 tensors only, fewer than a step has.
    writer = tf.debugging.experimental.enable_dump_debug_info(
        str(folder), tensor_debug_mode=mode, circular_buffer_size=-1
    )
    stack.callback(tf.debugging.experimental.disable_dump_debug_info)
    step = trace()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        step()
        if mode == "FULL_TENSOR":
            writer.FlushExecutionFiles()

    def count_records() -> int:
        writer.FlushNonExecutionFiles()
        with DebugDataReader(str(folder)) as reader:
            reader.update()
            return reader.num_graph_execution_traces() // calls

    def clean() -> None:
        # The writer keeps its files open, so they are emptied. It goes on where it was: they become sparse.
        for path in folder.iterdir():
            os.truncate(path, 0)

    return Watching(call, count_records, folder, settle=writer.FlushExecutionFiles, clean=clean)


def make_peer(tool: str, setting: str, group: str, process: str, start: Any, opening: Any) -> Peer:
    return Peer(
        tool,
        setting,
        group,
        "graph node",
        package="tensorflow_cpu",
        install="tensortap[peer-tfdbg]",
        process=process,
        start=start,
        open=opening,
    )


PEERS = [
    *(
        make_peer("tfdbg", op, group, "tfdbg", start_graph, partial(open_tfdbg, debug_op=op))
        for group, op in ((HEALTH, "DebugNumericSummary"), (VALUES, "DebugIdentity"))
    ),
    *(
        make_peer("tfdbg2", mode, group, f"tfdbg2 {mode}", start_function, partial(open_tfdbg2, mode=mode))
        for group, mode in (
            (HEALTH, "FULL_HEALTH"),
            (HEALTH, "CONCISE_HEALTH"),
            (HEALTH, "CURT_HEALTH"),
            (VALUES, "FULL_TENSOR"),
        )
    ),
]
