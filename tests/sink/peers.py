"""Debug servers to stream to: ours in a process of its own, and a plain tfdbg one in this process.

Run as a program, it is a server: `python -m tests.sink.peers ROOT PORT [seconds per message]`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from tensortap.reader.session_dir import SessionDir
from tensortap.wire.debug_service import SEND_EVENTS, SERVICE, Event, EventReply
from tensortap.wire.events import GRAPH, METADATA, TENSOR, GraphJoiner, TensorJoiner, kind_of
from tests.patience import patience

PROJECT = Path(__file__).parents[2]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class ServerProcess:
    """Our server in a process that can be stopped, killed and started again on the same port and root."""

    def __init__(self, root, port=None, delay=0.0):
        self.root, self.port, self.delay = Path(root), port or free_port(), delay
        self.address = f"localhost:{self.port}"
        self.start()

    def start(self):
        program = [sys.executable, "-m", "tests.sink.peers", str(self.root), str(self.port), str(self.delay)]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        self.process = subprocess.Popen(
            program, stdout=subprocess.PIPE, cwd=PROJECT, env=environment, text=True
        )
        assert self.process.stdout.readline().strip() == "serving"

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def sessions(self):
        """What it has written, session by session."""
        return [
            SessionDir(path) for path in sorted(self.root.iterdir()) if (path / "tensortap.json").exists()
        ]

    def records(self):
        """How many records it has written."""
        return sum(ref.open(validate=False).size for session in self.sessions() for ref in session)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on()
        self.kill()


class PlainServer:
    """A debug server as tfdbg knows it: no batches, one reply per graph, metadata and breakpoint (F18)."""

    def __init__(self):
        self.records, self.graphs, self.streams, self.changes = [], [], [], []
        self.breakpoints = {}
        self.reads = threading.Event()
        self.reads.set()
        self._server = grpc.server(ThreadPoolExecutor(10))
        handler = grpc.stream_stream_rpc_method_handler(
            self._send_events, Event.FromString, EventReply.SerializeToString
        )
        name = SEND_EVENTS.rpartition("/")[2]
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {name: handler}),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.url = f"grpc://localhost:{self.port}"

    def request(self, key, state):
        """Have a change of state sent with the next reply."""
        node, slot, debug_op = key.rsplit(":", 2)
        self.changes.append((state, node, int(slot), debug_op))

    def _reply(self, tensor=None):
        reply = EventReply()
        while self.changes:
            state, node, slot, debug_op = self.changes.pop(0)
            reply.debug_op_state_changes.add(state=state, node_name=node, output_slot=slot, debug_op=debug_op)
        if tensor is not None:
            reply.tensor.CopyFrom(tensor)
        return reply

    def _send_events(self, events, context):
        graphs, tensors, kinds = GraphJoiner(), TensorJoiner(), []
        self.streams.append(kinds)
        for event in events:
            self.reads.wait()
            kinds.append(kind_of(event))
            if kinds[-1] == METADATA:
                yield self._reply()
            elif kinds[-1] == GRAPH:
                graph = graphs.add(event)
                if graph is not None:
                    self.graphs.append(graph)
                    yield self._reply()
            elif kinds[-1] == TENSOR:
                record = tensors.add(event)
                if record is not None:
                    self.records.append(record)
                    if record.watch_key in self.breakpoints:
                        tensor = self.breakpoints[record.watch_key](record)
                        if tensor is not False:
                            yield self._reply(tensor)

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self.reads.set()
        self._server.stop(None).wait()


@contextmanager
def at_most(seconds):
    """The block must not take longer, on an idle machine."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took < seconds * patience(), f"took {took:.1f} s"


def main(root, port, delay):
    from tensortap.server import DebugServer, StreamHandler

    class Slow(StreamHandler):
        def on_tensor(self, record):
            time.sleep(float(delay))

        def on_batch(self, batch):
            time.sleep(float(delay))

    handler = {"handler": Slow} if float(delay) else {}
    server = DebugServer(root, port=int(port), http_port=None, **handler).start()
    print("serving", flush=True)
    assert server.address
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
