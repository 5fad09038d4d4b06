"""What the tests of the server share: clients of every kind, and a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import grpc
import numpy as np

from tensortap.records import RECORD_ROW, KeyTable, Record, RecordBatch, RunInfo
from tensortap.wire.batches import BatchEncoder
from tensortap.wire.debug_service import SEND_EVENTS, EventReply
from tensortap.wire.events import StreamMetadata, metadata_event, tensor_events
from tests.patience import patient

PROJECT = Path(__file__).parents[2]


def device(rank=0):
    return f"/job:localhost/replica:0/task:{rank}/device:CPU:0"


def identity(name, values, rank=0, timestamp=1_700_000_000_000_100):
    array = np.asarray(values)
    return Record(
        name, 0, "DebugIdentity", device(rank), timestamp, array.dtype.name, array.shape, array.tobytes()
    )


def pill(nan=0.0, neg_inf=0.0, pos_inf=0.0, mean=0.5):
    return np.array([1, 8, nan, neg_inf, 0, 0, 8, pos_inf, 0, 1, mean, 0.1, 1, 1, 8], np.float64)


def summary(name, values, rank=0, timestamp=1_700_000_000_000_100):
    return Record(name, 0, "DebugNumericSummary", device(rank), timestamp, "float64", (15,), values.tobytes())


def pill_batch(names, pills, rank=0, timestamp=1_700_000_000_000_100):
    table, rows = KeyTable(), np.zeros(len(names), RECORD_ROW)
    for place, name in enumerate(names):
        key = table.add((name, 0, "DebugNumericSummary", device(rank), "float64"))
        rows[place] = (key, 1, timestamp + place, place * 120, 120, (15,) + (0,) * 7)
    return RecordBatch(table, rows, np.stack(pills))


def metadata(index=0, *, step=-1, rank=None, job="", timestamp=1_700_000_000_000_000, **facts):
    """The first event of a stream: of our client if it has a rank, else as TensorFlow sends it."""
    info = RunInfo(index, step, timestamp + index, task=rank or 0, **facts)
    ours = {} if rank is None else {"session": job, "process": os.getpid()}
    return metadata_event(StreamMetadata(info, "" if rank is not None or not job else f"/{job}", **ours))


def events(*items):
    """Bytes of events, records and batches as one stream has them."""
    encoder = BatchEncoder()
    for item in items:
        if isinstance(item, Record):
            yield from tensor_events(item)
        elif isinstance(item, RecordBatch):
            yield from encoder.encode(item)
        else:
            yield item


def open_stream(server, messages, token=None):
    """A call in progress; iterate to read its replies."""
    channel = grpc.insecure_channel(server.address)
    method = channel.stream_stream(SEND_EVENTS, response_deserializer=EventReply.FromString)
    call = method(messages, metadata=[("authorization", f"Bearer {token}")] if token else None)
    call.channel = channel  # lives as long as the call
    return call


def stream(server, *items, token=None):
    """Send one stream to its end; all replies."""
    call = open_stream(server, events(*items), token)
    with call.channel:
        return list(call)


def http(server, path, method="GET", body=None, headers=None):
    """Status and decoded body of a request."""
    request = urllib.request.Request(
        f"{server.http_address}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers=headers or {},
    )
    try:
        with urllib.request.urlopen(request, timeout=patient(30)) as response:
            content, status = response.read(), response.status
    except urllib.error.HTTPError as error:
        with error:
            content, status = error.read(), error.code
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content


def get(server, path, **query):
    """The decoded body of a request that must succeed."""
    text = "&".join(f"{key}={quote(str(value))}" for key, value in query.items())
    status, body = http(server, f"{path}?{text}" if text else path)
    assert status == 200, body
    return body


def eventually(condition, seconds=20):
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + patient(seconds)
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


class ServeProcess:
    """`tensortap serve` as a process; `kill -9` and all."""

    def __init__(self, root, *arguments):
        command = [sys.executable, "-m", "tensortap.commands", "serve", "--root", str(root), *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.address = self._line().split("grpc://")[1]
        self.http_address = self._line().split()[1].rstrip("/")
        self._line()

    def _line(self):
        line = self.process.stderr.readline().strip()
        assert line, self.process.stderr.read()
        return line

    def kill(self):
        self.process.kill()
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(patient(30))
        said = self.process.stderr.read()
        self.process.stderr.close()
        return said
