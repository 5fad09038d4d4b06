"""From options to watches: pure functions that fill `RunOptions.debug_options`.

The graph of an eager engine is learned by running, so there are two ways to watch many tensors. For a graph
that is known, one watch per matching output can be listed. For a graph that is not, a single watch of `*`
carries the pattern, and every node is matched when the engine executes it, by the same `TensorPattern`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensortap.seam.graph import Graph
from tensortap.seam.options import DebugTensorWatch, RunOptions
from tensortap.seam.pattern import TensorPattern
from tensortap.watch.options import DEFAULT_DEBUG_OP, WatchOptions, as_op_list
from tensortap.watch.plan import ANY_NODE, ANY_SLOT, make_op
from tensortap.watch.urls import as_url_list

__all__ = ["add_debug_tensor_watch", "watch_graph", "watch_graph_with_denylists", "watch_run"]


def add_debug_tensor_watch(
    run_options: RunOptions,
    node_name: str,
    output_slot: int = 0,
    debug_ops: str | Iterable[str] = DEFAULT_DEBUG_OP,
    debug_urls: str | Iterable[str] | None = None,
    tolerate_debug_op_creation_failures: bool = False,
    global_step: int = -1,
) -> None:
    """Watch one tensor.

    Args:
        run_options: gets the watch.
        node_name: the node, which need not be known yet; `*` for all nodes.
        output_slot: which of its outputs; -1 for all.
        debug_ops: one debug op or several.
        debug_urls: where the records go, one URL or several.
        tolerate_debug_op_creation_failures: leave out a debug op that cannot be made.
        global_step: step to note with the run, -1 to leave it as it is.

    Raises:
        ValueError: a URL that is none.
        InvalidArgumentError: a debug op that cannot be made.

    >>> options = RunOptions()
    >>> add_debug_tensor_watch(options, "model/fc/addmm", debug_urls="file:///tmp/run")
    >>> options.debug_options.debug_tensor_watch_opts[0].debug_ops
    ['DebugIdentity']
    """
    ops = as_op_list(debug_ops)
    _check_ops(ops, tolerate_debug_op_creation_failures)
    watch = DebugTensorWatch(
        node_name, output_slot, ops, as_url_list(debug_urls), bool(tolerate_debug_op_creation_failures)
    )
    run_options.debug_options.debug_tensor_watch_opts.append(watch)
    _set_step(run_options, global_step, False)


def watch_graph(
    run_options: RunOptions,
    graph: Graph,
    debug_ops: str | Iterable[str] = DEFAULT_DEBUG_OP,
    debug_urls: str | Iterable[str] | None = None,
    node_name_regex_allowlist: str | None = None,
    op_type_regex_allowlist: str | None = None,
    tensor_dtype_regex_allowlist: str | None = None,
    tolerate_debug_op_creation_failures: bool = False,
    global_step: int = -1,
    reset_disk_byte_usage: bool = False,
) -> None:
    """Watch all tensors of a graph, or those that match every allow list that is given.

    For a known graph this adds one watch per output, in graph order, and without any allow list a watch of
    `*` for nodes that turn up later. For a graph that is not known yet it adds one watch of `*` that carries
    the patterns.

    Args:
        run_options: gets the watches.
        graph: the graph of the session.
        debug_ops: one debug op or several.
        debug_urls: where the records go, one URL or several.
        node_name_regex_allowlist: only nodes whose name starts so.
        op_type_regex_allowlist: only nodes whose op type starts so.
        tensor_dtype_regex_allowlist: only outputs whose dtype starts so.
        tolerate_debug_op_creation_failures: leave out a debug op that cannot be made.
        global_step: step to note with the run, -1 to leave it as it is.
        reset_disk_byte_usage: count the bytes written from zero again.

    Raises:
        ValueError: no debug op, no URL, a bad URL or a bad regular expression.
        InvalidArgumentError: a debug op that cannot be made.

    >>> from tensortap.records import Node, TensorSpec
    >>> graph = Graph()
    >>> graph.record([Node("x", "Placeholder", outputs=(TensorSpec("float32", ()),))])
    >>> graph.known = True
    >>> options = RunOptions()
    >>> watch_graph(options, graph, debug_urls="file:///tmp/run")
    >>> [watch.node_name for watch in options.debug_options.debug_tensor_watch_opts]
    ['x', '*']
    """
    ops, urls = as_op_list(debug_ops), as_url_list(debug_urls)
    if not ops:
        raise ValueError("debug_ops is empty: name at least one debug op, such as 'DebugIdentity'.")
    if not urls:
        raise ValueError("debug_urls is empty: say where the records go, as in 'file:///tmp/run'.")
    pattern = TensorPattern(node_name_regex_allowlist, op_type_regex_allowlist, tensor_dtype_regex_allowlist)
    tolerate = bool(tolerate_debug_op_creation_failures)
    _check_ops(ops, tolerate)
    watches = run_options.debug_options.debug_tensor_watch_opts
    if graph.known:
        watches.extend(_enumerated(graph, pattern, ops, urls, tolerate))
    if pattern.is_empty or not graph.known:
        watches.append(_of_any_node(pattern, ops, urls, tolerate))
    _set_step(run_options, global_step, reset_disk_byte_usage)


def watch_graph_with_denylists(
    run_options: RunOptions,
    graph: Graph,
    debug_ops: str | Iterable[str] = DEFAULT_DEBUG_OP,
    debug_urls: str | Iterable[str] | None = None,
    node_name_regex_denylist: str | None = None,
    op_type_regex_denylist: str | None = None,
    tensor_dtype_regex_denylist: str | None = None,
    tolerate_debug_op_creation_failures: bool = False,
    global_step: int = -1,
    reset_disk_byte_usage: bool = False,
) -> None:
    """Watch all tensors of a graph except those that match any of the deny lists.

    Arguments as for `watch_graph`. For a known graph nothing but the tensors it holds is watched.

    >>> options = RunOptions()
    >>> watch_graph_with_denylists(
    ...     options, Graph(), debug_urls="file:///tmp/run", op_type_regex_denylist=r"Variable")
    >>> options.debug_options.debug_tensor_watch_opts[0].pattern.op_type_regex_denylist
    'Variable'
    """
    ops, urls = as_op_list(debug_ops), as_url_list(debug_urls)
    pattern = TensorPattern(
        node_name_regex_denylist=node_name_regex_denylist,
        op_type_regex_denylist=op_type_regex_denylist,
        tensor_dtype_regex_denylist=tensor_dtype_regex_denylist,
    )
    tolerate = bool(tolerate_debug_op_creation_failures)
    _check_ops(ops, tolerate)
    watches = run_options.debug_options.debug_tensor_watch_opts
    if graph.known:
        watches.extend(_enumerated(graph, pattern, ops, urls, tolerate))
    else:
        watches.append(_of_any_node(pattern, ops, urls, tolerate))
    _set_step(run_options, global_step, reset_disk_byte_usage)


def watch_run(
    run_options: RunOptions,
    watch: WatchOptions,
    debug_urls: str | Iterable[str],
    reset_disk_byte_usage: bool = False,
) -> None:
    """Watch what `watch` says in the coming run, by pattern, whatever is known of the graph.

    This is what wrapper sessions and hooks use: a program that does something new in a later run is watched
    there too, and one watch costs the same for three nodes and for thirty thousand.

    >>> options = RunOptions()
    >>> watch_run(options, WatchOptions("DebugNanCount"), "file:///tmp/run")
    >>> [(watch.node_name, watch.output_slot) for watch in options.debug_options.debug_tensor_watch_opts]
    [('*', -1)]
    """
    tolerate = watch.tolerate_debug_op_creation_failures
    _check_ops(watch.debug_ops, tolerate)
    added = _of_any_node(watch.pattern, watch.debug_ops, as_url_list(debug_urls), tolerate)
    run_options.debug_options.debug_tensor_watch_opts.append(added)
    run_options.debug_options.keep_bad = max(run_options.debug_options.keep_bad, watch.keep_bad)
    _set_step(run_options, -1, reset_disk_byte_usage)


def _enumerated(
    graph: Graph, pattern: TensorPattern, ops: list[str], urls: list[str], tolerate: bool
) -> Iterable[DebugTensorWatch]:
    for node in graph.nodes:
        for slot in range(len(node.outputs)):
            if pattern.matches(node, slot):
                yield DebugTensorWatch(node.name, slot, list(ops), list(urls), tolerate, pattern)


def _of_any_node(pattern: TensorPattern, ops: list[str], urls: list[str], tolerate: bool) -> DebugTensorWatch:
    carried = None if pattern.is_empty else pattern
    return DebugTensorWatch(ANY_NODE, ANY_SLOT, list(ops), list(urls), tolerate, carried)


def _check_ops(ops: list[str], tolerate: bool) -> None:
    if not tolerate:
        for text in ops:
            make_op(text)


def _set_step(run_options: RunOptions, global_step: int, reset_disk_byte_usage: bool) -> None:
    debug = run_options.debug_options
    if global_step >= 0:
        debug.global_step = global_step
    debug.reset_disk_byte_usage |= reset_disk_byte_usage
