"""Every question one can ask a `DebugDumpDir`, ours or TensorFlow's, as plain data to compare."""

from __future__ import annotations

import hashlib
import os

import numpy as np


def asked(query):
    """The answer, or the kind of error."""
    try:
        return query()
    except ValueError:
        return "ValueError"
    except LookupError:
        return "LookupError"


def value_of(tensor):
    if hasattr(tensor, "initialized"):
        return ["inconvertible", bool(tensor.initialized)]
    if tensor.dtype == object:
        content = repr(tensor.reshape(-1).tolist())
    else:
        content = hashlib.sha256(tensor.tobytes()).hexdigest()
    return [str(tensor.dtype), list(tensor.shape), content]


def bad_float32(datum, tensor):
    return getattr(tensor, "dtype", None) == np.float32 and not np.isfinite(tensor).all()


def of_graph(graph):
    return sorted([node.name, node.op, list(node.input), sorted(node.attr)] for node in graph.node)


def of_node(dump, node, device):
    where = {"device_name": device}
    answers = {
        name: asked(lambda query=query: query(node, **where))
        for name, query in {
            "inputs": dump.node_inputs,
            "recipients": dump.node_recipients,
            "op": dump.node_op_type,
            "transitive": dump.transitive_inputs,
        }.items()
    }
    answers["control inputs"] = asked(lambda: dump.node_inputs(node, is_control=True, **where))
    answers["control recipients"] = asked(lambda: dump.node_recipients(node, is_control=True, **where))
    answers["data inputs"] = asked(lambda: dump.transitive_inputs(node, include_control=False, **where))
    answers["attributes"] = asked(
        lambda: {key: hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()
                 for key, value in dump.node_attributes(node, **where).items()}
    )  # fmt: skip
    answers["without device"] = asked(lambda: dump.node_op_type(node))
    answers["device"] = asked(
        lambda: sorted([found] if isinstance(found := dump.node_device(node), str) else found)
    )
    answers["keys"] = asked(lambda: sorted(dump.debug_watch_keys(node, **where)))
    return answers


def of_datum(dump, datum):
    key = (datum.node_name, datum.output_slot, datum.debug_op)
    return {
        "text": str(datum),
        "time": [datum.timestamp, datum.extended_timestamp],
        "key": datum.watch_key,
        "value": value_of(datum.get_tensor()),
        "file": os.path.relpath(datum.file_path, answers_root(dump)),
        "size": datum.dump_size_bytes,
        "values": asked(lambda: [value_of(each) for each in dump.get_tensors(*key)]),
        "times": asked(lambda: dump.get_rel_timestamps(*key)),
        "sizes": asked(lambda: dump.get_dump_sizes_bytes(*key)),
        "same key": asked(lambda: [str(each) for each in dump.watch_key_to_data(datum.watch_key)]),
    }


def answers_root(dump):
    return getattr(dump, "_dump_root", None) or str(dump.dump_root)


def answers(dump):
    listed = sorted(dump.devices())
    graphs = asked(dump.reconstructed_non_debug_partition_graphs)
    nodes = {device: asked(lambda device=device: sorted(dump.nodes(device))) for device in listed}
    metadata = dump.core_metadata
    result = {
        "size": dump.size,
        "t0": dump.t0,
        "devices": listed,
        "metadata": [list(each) for each in (metadata if isinstance(metadata, list) else [metadata])],
        "fetches": dump.run_fetches_info,
        "feeds": dump.run_feed_keys_info,
        "loaded": dump.loaded_partition_graphs(),
        "nodes": nodes,
        "graphs": {device: of_graph(graph) for device, graph in graphs.items()},
        "stored": asked(lambda: sorted(of_graph(graph) for graph in dump.partition_graphs())),
        "data": sorted(
            (of_datum(dump, each) for each in dump.dumped_tensor_data), key=lambda each: each["file"]
        ),
        "order": [each.timestamp for each in dump.dumped_tensor_data],
        "bad": sorted(str(each) for each in dump.find(bad_float32)),
        "first bad": len(dump.find(bad_float32, first_n=1)),
        "excluded": sorted(str(each) for each in dump.find(lambda d, t: True, exclude_node_names="loop|fc")),
        "unknown": [
            asked(lambda: dump.get_tensors("nowhere", 0, "DebugIdentity")),
            asked(lambda: dump.node_inputs("nowhere")),
            asked(lambda: dump.node_device("nowhere")),
            asked(lambda: dump.nodes("nowhere")),
            asked(lambda: dump.node_exists("nowhere")),
            asked(lambda: dump.watch_key_to_data("nowhere:0:DebugIdentity")),
            asked(lambda: dump.debug_watch_keys("nowhere")),
            asked(lambda: dump.node_traceback("nowhere")),
        ],
    }
    result["each"] = {
        device: {node: of_node(dump, node, device) for node in found} if found != "LookupError" else None
        for device, found in nodes.items()
    }
    result["paths"] = [
        [
            a,
            b,
            asked(lambda a=a, b=b, device=device: dump.find_some_path(a, b, device_name=device) is not None),
        ]
        for device, found in nodes.items()
        if found != "LookupError"
        for a in found[:12]
        for b in found[:12]
    ]
    return result
