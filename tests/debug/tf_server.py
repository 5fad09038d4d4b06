"""TensorFlow's own debug test server as a process: commands on standard input, answers as JSON lines.

Nothing else in the tests imports TensorFlow.
"""

from __future__ import annotations

import json
import socket
import sys
import types

sys.modules["portpicker"] = types.ModuleType("portpicker")  # the module imports it and we do without

from tensorflow.python.debug.lib import grpc_debug_test_server  # noqa: E402


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def received(server):
    """All that the server keeps in memory."""
    return {
        "values": {
            key: [[str(value.dtype), list(value.shape), value.tobytes().hex()] for value in values]
            for key, values in server.debug_tensor_values.items()
        },
        "metadata": [json.loads(text) for text in server.core_metadata_json_strings],
        "graphs": [
            {node.name: [node.op, [each for each in node.input if each[0] != "^"]] for node in graph.node}
            for graph in server.partition_graph_defs
        ],
        "gated": sorted(
            f"{watch.node_name}:{watch.output_slot}:{watch.debug_op}"
            for watch in server.gated_grpc_debug_watches()
        ),
        "call_keys": list(server.query_call_keys()),
        "origins": server.query_origin_stack(),
        "versions": list(server.query_graph_versions()),
    }


def started(dump_dir=None):
    port = free_port()
    server = grpc_debug_test_server.EventListenerTestServicer(port, dump_dir)
    server.run_server(blocking=False)
    return port, server


def main():
    port, server = started()
    print(json.dumps(port), flush=True)
    writing = []
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer = None
        if command == "write_to":
            port, another = started(*arguments)
            writing.append(another)
            answer = port
        elif command == "received":
            answer = received(server)
        elif command == "clear":
            server.clear_data()
        elif command == "watch":
            server.request_watch(*arguments)
        elif command == "unwatch":
            server.request_unwatch(*arguments)
        elif command == "traceback":
            answer = server.query_op_traceback(*arguments)
        elif command == "source_line":
            answer = server.query_source_file_line(*arguments)
        print(json.dumps(answer), flush=True)
    for each in (server, *writing):
        each.stop_server()


if __name__ == "__main__":
    main()
