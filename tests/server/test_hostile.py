"""Whatever a client sends, it gets an error on its own stream, and everybody else is served (X17)."""

from __future__ import annotations

import os

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensortap.records import RECORD_ROW
from tensortap.server import DebugServer, Limits
from tensortap.server.stream import Stream
from tensortap.wire.debug_service import SEND_SOURCE_FILES, SEND_TRACEBACKS, WireError
from tensortap.wire.encoding import find_field
from tensortap.wire.events import BATCH_PLUGIN, graph_events, own_event, tensor_events
from tensortap.wire.messages import BatchMessage, DebuggedSourceFiles, Event
from tests.server.tools import (
    device,
    events,
    eventually,
    identity,
    metadata,
    open_stream,
    pill,
    pill_batch,
    stream,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    limits = Limits(message_bytes=1 << 20, value_bytes=1 << 20, pending_bytes=4 << 20)
    with DebugServer(tmp_path_factory.mktemp("hostile"), http_port=None, limits=limits) as running:
        yield running


def tensor_event(
    name="x:0:DebugIdentity", content='{"device": "/d", "numChunks": 1, "chunkIndex": 0}', **facts
):
    event = Event(wall_time=facts.pop("wall_time", 17.0))
    value = event.summary.value.add(node_name=name, tag="x")
    value.metadata.plugin_data.plugin_name = "debugger"
    value.metadata.plugin_data.content = content.encode()
    value.tensor.dtype = facts.pop("dtype", 1)
    for size in facts.pop("shape", [1]):
        value.tensor.tensor_shape.dim.add(size=size)
    value.tensor.tensor_content = facts.pop("data", bytes(4))
    return event.SerializeToString()


def strings_event(elements):
    event = Event.FromString(tensor_event(dtype=7, shape=[elements], data=b""))
    event.summary.value[0].tensor.string_val.append(b"x" * 1000)
    return event.SerializeToString()


def chunk(index, count, data=bytes(4), name="x:0:DebugIdentity"):
    content = f'{{"device": "/d", "numChunks": {count}, "chunkIndex": {index}}}'
    return tensor_event(name, content, data=data, shape=[1 << 20])


def batch_event(rows, data=b"", **facts):
    (good,) = events(pill_batch(["x"], [pill()]))
    message = BatchMessage.FromString(Event.FromString(good).summary.value[0].metadata.plugin_data.content)
    message.rows, message.data = rows, data
    return b"".join(own_event(BATCH_PLUGIN, message.SerializeToString()))


def rows(**columns):
    row = np.zeros(1, RECORD_ROW)
    row[0] = (0, 1, 17, 0, 120, (15,) + (0,) * 7)
    for name, value in columns.items():
        row[name] = value
    return row.tobytes()


HOSTILE = {
    "garbage": [b"\xff" * 100],
    "a name that climbs": [tensor_event("../../etc/passwd:0:DebugIdentity")],
    "a name that climbs from within": [tensor_event("a/../../b:0:DebugIdentity")],
    "a name with a NUL": [tensor_event("a\0b:0:DebugIdentity")],
    "a name with an escape sequence": [tensor_event("\x1b[2J:0:DebugIdentity")],
    "a name of many kilobytes": [tensor_event("x" * 500_000 + ":0:DebugIdentity")],
    "no name": [tensor_event(":0:DebugIdentity")],
    "a slot that is none": [tensor_event("x:one:DebugIdentity")],
    "a slot of many digits": [tensor_event("x:" + "9" * 5000 + ":DebugIdentity")],
    "no plugin data": [tensor_event(content="")],
    "plugin data that is no object": [tensor_event(content="[1]")],
    "plugin data nested deeply": [tensor_event(content="[" * 100_000)],
    "a device that climbs": [tensor_event(content='{"device": "../../x", "numChunks": 1, "chunkIndex": 0}')],
    "NaN chunks": [tensor_event(content='{"device": "/d", "numChunks": NaN, "chunkIndex": 0}')],
    "infinitely many chunks": [
        tensor_event(content='{"device": "/d", "numChunks": Infinity, "chunkIndex": 0}')
    ],
    "half a chunk": [tensor_event(content='{"device": "/d", "numChunks": 1.5, "chunkIndex": 0}')],
    "a chunk index that is too large": [chunk(7, 2)],
    "a negative chunk index": [chunk(-1, 2)],
    "a chunk twice": [chunk(0, 3), chunk(0, 3)],
    "chunks that do not agree": [chunk(0, 3), chunk(1, 4)],
    "chunks without end": [chunk(place, 1000, bytes(100_000)) for place in range(20)],
    "things without end": [chunk(0, 2, name=f"x{place}:0:DebugIdentity") for place in range(2000)],
    "a negative size": [tensor_event(shape=[-4])],
    "a size that overflows": [tensor_event(shape=[1 << 62, 8], data=bytes(8))],
    "too many dimensions": [tensor_event(shape=[1] * 65)],
    "a size that does not fit": [tensor_event(shape=[3], data=bytes(4))],
    "one string for very many elements": [strings_event(1 << 24)],
    "no time": [tensor_event(wall_time=float("nan"))],
    "infinite time": [tensor_event(wall_time=float("inf"))],
    "a graph without its prefix": [Event(graph_def=b"\x0a\x02ab").SerializeToString()],
    "a graph with a strange prefix": [Event(graph_def=b"1,/d,2|x|1|").SerializeToString()],
    "a graph that is none": [*graph_events(b"\xff" * 50, device(), 17)],
    "a graph of endless chunks": [
        Event(graph_def=b"1,/d,2|%d|99|" % place + bytes(100_000)).SerializeToString() for place in range(20)
    ],
    "metadata that is no JSON": [Event(log_message={"message": "{"}).SerializeToString()],
    "metadata that is no object": [Event(log_message={"message": "3"}).SerializeToString()],
    "two metadata events (F19)": [metadata(0), metadata(0)],
    "a job that climbs": [metadata(0, job="../../../tmp/x")],
    "a job with a NUL": [metadata(0, job="a\0b")],
    "half a row": [batch_event(rows()[:50])],
    "a row with an unknown key": [batch_event(rows(key=9), bytes(120))],
    "a row outside of its data": [batch_event(rows(offset=8), bytes(120))],
    "a row with a negative size": [batch_event(rows(nbytes=-8), bytes(120))],
    "a row whose shape overflows": [batch_event(rows(rank=2, nbytes=0, dims=(1 << 32,) * 8), b"")],
    "a row with too many dimensions": [batch_event(rows(rank=99), bytes(120))],
    "a batch before its keys": [
        b"".join(own_event(BATCH_PLUGIN, BatchMessage(table=3, rows=rows()).SerializeToString()))
    ],
    "a batch with a name that climbs": list(events(pill_batch(["a/../b"], [pill()]))),
    "a batch that is none": [b"".join(own_event(BATCH_PLUGIN, b"\xff\xff"))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_and_others_are_served(server, name):
    neighbour = open_stream(server, iter([metadata(0, job="neighbour")]))
    with pytest.raises(grpc.RpcError) as caught:
        stream(server, *HOSTILE[name])
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details()
    assert len(caught.value.details()) <= 1000
    assert len(list(neighbour)) == 1
    eventually(lambda: server.gauges()["active_streams"] == 0)
    assert server.gauges()["pending_chunk_bytes"] == 0
    assert server.statistics.counts()["failures"] == 0
    # Nothing was written outside of the two jobs, nor under a name from a message.
    assert set(os.listdir(server.root)) <= {"default", "neighbour"}
    stream(server, metadata(0), identity("good", [1.0]))


def test_an_oversized_message(server):
    with pytest.raises(grpc.RpcError) as caught:
        stream(server, metadata(0), tensor_event(data=bytes(2 << 20)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    stream(server, metadata(0), identity("good", [1.0]))


def test_unknown_methods_and_garbage_in_the_others(server):
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/tensorflow.EventListener/Nothing")(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        for method in (SEND_TRACEBACKS, SEND_SOURCE_FILES):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(b"\xff" * 10)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        strange = DebuggedSourceFiles()
        strange.source_files.add(file_path="a\0b", lines=["x"])
        with pytest.raises(grpc.RpcError, match="no name of a source file"):
            channel.unary_unary(SEND_SOURCE_FILES)(strange.SerializeToString())


def test_the_path_of_a_source_file_is_only_a_name(server, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("never read")
    files = DebuggedSourceFiles()
    files.source_files.add(file_path=str(secret), lines=["sent", "by the client"])
    files.source_files.add(file_path="../../escaped.py", lines=["x = 1"])
    with grpc.insecure_channel(server.address) as channel:
        channel.unary_unary(SEND_SOURCE_FILES)(files.SerializeToString())
    stream(server, metadata(99), identity("x", [1.0]))
    run = server.session().run(99)
    assert run.source.source_text(str(secret)) == "sent\nby the client"
    assert run.source.source_text("../../escaped.py") == "x = 1"
    assert secret.read_text() == "never read"


@pytest.fixture(scope="module")
def valid():
    graph = b"".join([b"\n\x04\n\x02fc"])
    return list(
        events(
            metadata(0, rank=0, job="neighbour"),
            *graph_events(graph, device(), 17),
            *tensor_events(identity("x", np.zeros(100)), max_bytes=300),
            pill_batch(["a", "b"], [pill(), pill(nan=1)]),
        )
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_messages_are_refused_or_understood(server, valid, data):
    """Bytes changed, cut and repeated anywhere: an error that says so, or a run that can be read; never a crash."""
    messages = [bytearray(message) for message in valid]
    for _ in range(data.draw(st.integers(1, 4))):
        message = messages[data.draw(st.integers(0, len(messages) - 1))]
        place = data.draw(st.integers(0, len(message)))
        change = data.draw(st.sampled_from(["set", "cut", "insert", "repeat"]))
        if change == "cut":
            del message[place:]
        elif change == "insert":
            message[place:place] = data.draw(st.binary(max_size=12))
        elif change == "repeat":
            messages.append(message)
        elif place < len(message):
            message[place] = data.draw(st.integers(0, 255))
    taken = Stream(server.reception, lambda: True)
    error = None
    try:
        for message in messages:
            taken.take(bytes(message))
    except WireError as refusal:
        error = str(refusal)
        assert error
    taken.close(error)
    assert server.gauges()["pending_chunk_bytes"] == 0
    assert server.statistics.counts()["failures"] == 0
    for path in server.root.iterdir():
        assert path.resolve().parent == server.root.resolve()


@given(
    st.binary(max_size=300), st.floats(), st.text(max_size=40), st.lists(st.integers(0, 2**40), max_size=4)
)
def test_the_content_of_a_tensor_is_found_without_a_copy(content, wall_time, name, shape):
    message = tensor_event(name, data=content, wall_time=wall_time, shape=shape)
    found = find_field(message, (5, 1, 8, 4))
    assert bytes(found if found is not None else b"") == content
    for end in range(0, len(message), 7):
        assert find_field(message[:end], (5, 1, 8, 4)) is None  # cut off anywhere


@given(st.binary(max_size=60))
def test_looking_for_a_field_in_garbage_is_harmless(garbage):
    found = find_field(garbage, (5, 1))
    assert found is None or len(found) <= len(garbage)
