"""The gRPC sink against servers that do what they should: everything arrives, as it was, and is counted."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tensortap.reader.session_dir import SessionDir
from tensortap.records import KeyTable, Record, RunInfo
from tensortap.server import DebugServer
from tensortap.sink.base import InteractiveSink, RunEnd, Sink
from tensortap.sink.destinations import open_sink
from tensortap.sink.grpc import GrpcSink
from tensortap.sink.stream_options import StreamOptions
from tensortap.wire.debug_service import DISABLED, READ_ONLY, READ_WRITE, TensorProto
from tensortap.wire.events import GRAPH, METADATA, TENSOR
from tensortap.wire.tensor_proto import fill_tensor
from tensortap.wire.values import as_bytes
from tests.patience import patient
from tests.sink.peers import PlainServer, at_most
from tests.store import sample
from tests.store.sample import CPU, INFO, START, batch_of, nodes, pill
from tests.wire.test_events import same

OPTIONS = StreamOptions(
    connect_timeout_secs=patient(5),
    stall_timeout_secs=patient(10),
    gate_timeout_secs=patient(5),
    breakpoint_timeout_secs=patient(5),
)
NODES = [node for each in nodes().values() for node in each]


def as_engines_make_it(each):
    """With data in the form of a buffer."""
    if each.data is None or each.dtype == "string":
        return each
    return replace(each, data=bytes(as_bytes(each.data)))


def record(*arguments, **named):
    return as_engines_make_it(sample.record(*arguments, **named))


def records():
    return list(map(as_engines_make_it, sample.records()))


@pytest.fixture
def server(tmp_path):
    with DebugServer(tmp_path / "root", http_port=None) as running:
        yield running


@pytest.fixture
def plain():
    with PlainServer() as running:
        yield running


def stream(url, listed=(), info=INFO, options=OPTIONS, end=None):
    """One run, sent and confirmed."""
    sink = GrpcSink(url, info, options)
    for each in listed:
        (sink.write if isinstance(each, Record) else sink.write_batch)(each)
    sink.finish(RunEnd(NODES) if end is None else end)
    assert sink.flush(patient(30))
    return sink


def the_run(server):
    (session,) = [SessionDir(path) for path in server.root.iterdir()]
    (ref,) = session
    return ref.open(validate=False)


def test_it_is_a_sink_with_a_say(server):
    sink = open_sink(f"grpc://{server.address}", INFO)
    assert isinstance(sink, Sink)
    assert isinstance(sink, InteractiveSink)
    sink.close()
    sink.close()
    assert sink.flush(patient(10))


@pytest.mark.parametrize("whole", [False, True], ids=["one by one", "in a batch"])
def test_our_server_has_every_value_graph_and_word(server, whole):
    fits = {True: [], False: []}
    for each in records():
        fits[each.dtype != "string" and each.initialized].append(each)
    sink = stream(f"grpc://{server.address}", [batch_of(fits[True]), *fits[False]] if whole else records())
    dump = the_run(server)
    assert sink.counts.written == dump.size == len(records())
    assert sink.counts.written_bytes == sum(each.nbytes for each in records())
    assert sink.counts.lost == 0
    sent = {(each.watch_key, each.device, each.timestamp): each for each in records()}
    for datum in dump.dumped_tensor_data:
        expected = sent[datum.watch_key, datum.device_name, datum.timestamp]
        value = datum.get_tensor()
        if expected.data is None:
            assert not value.initialized
        elif expected.dtype == "string":
            assert value.tolist() == expected.data
        elif datum.node_name != "loss":  # two of them in one microsecond
            assert value.tobytes() == expected.data
            assert value.shape == expected.shape
    assert dump.core_metadata.session_run_index == INFO.index
    assert dump.core_metadata.global_step == INFO.global_step
    assert {node.name for node in NODES} <= set(dump.nodes())


def test_a_plain_server_gets_one_event_each_and_the_graph_first_once_it_is_known(plain):
    """F5, F6, F8, F9: what tfdbg's own servers understand."""
    listed = [*records(), batch_of([pill("a"), pill("b", nan=1)])]
    first = stream(plain.url, listed)
    second = stream(plain.url, [pill("a")], replace(INFO, index=4))
    assert first.counts.written == len(records()) + 2
    assert second.counts.written == 1
    assert plain.streams == [
        [METADATA, *[TENSOR] * (len(records()) + 2), GRAPH, GRAPH],
        [GRAPH, GRAPH, METADATA, TENSOR],
    ]
    stream(plain.url, [], replace(INFO, index=4))
    assert plain.streams[-1] == [METADATA]
    assert all(same(a, b) for a, b in zip(records(), plain.records, strict=False))
    stream(plain.url, [], replace(INFO, index=5), end=RunEnd(NODES[:3]))
    assert plain.streams[-1] == [METADATA, GRAPH], "a graph that has changed"


def test_a_graph_that_is_known_before_the_run_comes_first(plain):
    """F6: tfdbg's server leaves a graph that comes after the metadata out of the directory it writes."""
    for index in range(2):
        sink = GrpcSink(plain.url, replace(INFO, index=index), OPTIONS)
        sink.foresee(NODES)
        sink.write(pill("a"))
        sink.finish(RunEnd(NODES))
        assert sink.flush(patient(30))
    assert plain.streams == [[GRAPH, GRAPH, METADATA, TENSOR], [METADATA, TENSOR]]


def test_our_server_takes_a_foreseen_graph_and_keeps_its_gates_apart(server):
    """Before the metadata it cannot know which job a run is of, and replies with the gates of another."""
    server.request_watch("elsewhere", 0, "DebugIdentity", job="default")
    server.request_watch("here", 0, "DebugIdentity", job="mine")
    sink = GrpcSink(f"grpc://{server.address}/mine", INFO, OPTIONS)
    sink.foresee(NODES)
    assert sink.open_gates() == {"here:0:DebugIdentity"}
    sink.finish(RunEnd(NODES))
    assert sink.flush(patient(30))
    assert {node.name for node in NODES} <= set(server.session("mine").run(-1).nodes())


def test_large_values_and_many_records_arrive(server):
    """F9: beyond one chunk, in one batch of several messages, and as one value after another."""
    rng = np.random.default_rng(0)
    big = [record(f"big{n}", rng.random((1100, 1100), np.float32), after=n) for n in range(3)]
    table = KeyTable()
    pills = [batch_of([pill(f"node{n}", after=n) for n in range(5000)], table) for _ in range(4)]
    sink = stream(f"grpc://{server.address}", [*big, batch_of(big, table), *pills, pill("last")])
    assert sink.counts.written == 20_007
    dump = the_run(server)
    assert dump.size == 20_007
    for each in big:
        values = [
            datum.get_tensor() for datum in dump.dumped_tensor_data if datum.node_name == each.node_name
        ]
        assert [value.tobytes() == each.data for value in values] == [True, True]


def test_what_has_no_form_in_the_protocol_is_counted_and_said_once(plain, caplog):
    odd = Record("q", 0, "DebugIdentity", CPU, START, "quaternion", (1,), bytes(16))
    long = Record("s", 0, "DebugIdentity", CPU, START, "string", (1,), [b"x" * (5 << 20)])
    small = record("i", np.array([1, -2], ml_dtypes.int4), dtype="int4")
    sink = stream(plain.url, [odd, pill("a"), long, odd, small])
    assert sink.counts.written == 2
    assert sink.counts.dropped == {"no form in the protocol": 3}
    assert caplog.text.count("quaternion has no form") == 1
    assert "a string of 5242880 bytes" in caplog.text


def test_how_a_run_ended_is_recorded(server):
    end = RunEnd(NODES, "ValueError: no", muted=3, failed=1)
    stream(f"grpc://{server.address}", [pill("a")], end=end)
    source = the_run(server).source
    assert source.error == "ValueError: no"
    assert (source.counts["muted"], source.counts["failed"], source.counts["written"]) == (3, 1, 1)


def test_a_wrong_token_is_told_and_counted(tmp_path, caplog, monkeypatch):
    """X17."""
    with DebugServer(tmp_path, http_port=None, token="secret") as server:
        url = f"grpc://{server.address}"
        right = stream(url, [pill("a")], options=StreamOptions(token="secret"))
        assert right.counts.written == 1
        wrong = stream(url, [pill("a")], options=StreamOptions(token="guess"))
        assert wrong.counts.dropped == {"refused by the server": 1}
        assert "UNAUTHENTICATED The server wants a token" in caplog.text
        monkeypatch.setenv("TENSORTAP_TOKEN", "secret")
        assert stream(url, [pill("a")]).counts.written == 1


def test_concurrent_runs_to_different_paths(server):
    """Three runs at once, each a session of its own."""
    sinks = [GrpcSink(f"grpc://{server.address}/job{n}", RunInfo(0, n, START + n), OPTIONS) for n in range(3)]
    for round in range(50):
        for sink in sinks:
            sink.write(pill(f"n{round}"))
    for sink in sinks:
        sink.finish(RunEnd(NODES))
    assert sinks[0].flush(patient(30))
    assert [sink.counts.written for sink in sinks] == [50] * 3
    steps = {
        path.name: [ref.open(validate=False).core_metadata.global_step for ref in SessionDir(path)]
        for path in server.root.iterdir()
    }
    assert steps == {"job0": [0], "job1": [1], "job2": [2]}


def test_gates_open_with_the_first_reply_and_stay_until_closed(plain):
    """F11, F12, X12: per URL, path included."""
    url = f"{plain.url}/path"
    plain.request("w:0:DebugIdentity", READ_ONLY)
    sink = GrpcSink(url, INFO, OPTIONS)
    assert sink.open_gates() == {"w:0:DebugIdentity"}
    assert GrpcSink(f"{plain.url}/other", INFO, OPTIONS).open_gates() == frozenset()
    plain.request("w:0:DebugIdentity", DISABLED)
    plain.request("never:0:DebugIdentity", DISABLED)
    assert GrpcSink(url, INFO, OPTIONS).open_gates() == frozenset()
    assert sink.breakpoints() == frozenset()


def test_a_breakpoint_waits_for_its_reply_which_may_bring_a_value(plain):
    """F10."""
    key = "w:0:DebugIdentity"
    plain.request(key, READ_WRITE)
    value = np.array([[1.5, -2.5]], np.float32)

    def answer(record):
        tensor = TensorProto()
        fill_tensor(tensor, value, "float32", (1, 2))
        return tensor

    plain.breakpoints[key] = answer
    sink = GrpcSink(plain.url, INFO, OPTIONS)
    assert sink.open_gates() == {key}
    assert sink.breakpoints() == {key}
    sink.write(pill("before"))
    sink.write(record("w", np.zeros((1, 2), np.float32)))
    assert [each.watch_key for each in plain.records] == ["before:0:DebugNumericSummary", key], "it waited"
    assert sink.replacement("w:0").tolist() == value.tolist()
    assert sink.replacement("w:0") is None, "given once"
    plain.breakpoints[key] = lambda record: None  # a reply without a value
    sink.write(record("w", np.zeros((1, 2), np.float32)))
    assert sink.replacement("w:0") is None
    sink.finish(RunEnd())
    assert sink.flush(patient(10))
    assert sink.counts.written == 3


def test_a_breakpoint_whose_server_forgets_to_reply_costs_its_timeout_once(plain, caplog):
    """X22."""
    key = "x:0:DebugIdentity"
    plain.request(key, READ_WRITE)
    plain.breakpoints[key] = lambda record: False
    sink = GrpcSink(plain.url, INFO, replace(OPTIONS, breakpoint_timeout_secs=0.5))
    assert sink.open_gates() == {key}
    with at_most(5):
        for _ in range(20):
            sink.write(record("x", [1.0]))
    assert "did not reply at the breakpoint x:0:DebugIdentity within 0.5 s" in caplog.text
    sink.finish(RunEnd())
    assert sink.flush(patient(10))
    assert sink.counts.written == 20


def test_a_breakpoint_ends_when_its_server_does(plain):
    key = "y:0:DebugIdentity"
    plain.request(key, READ_WRITE)
    plain.breakpoints[key] = lambda record: plain._server.stop(None) and False
    sink = GrpcSink(plain.url, INFO, StreamOptions(breakpoint_timeout_secs=60))
    assert sink.open_gates() == {key}
    with at_most(10):
        sink.write(record("y", [1.0]))
    sink.finish(RunEnd())
    assert sink.flush(patient(10))
    assert sink.counts.dropped == {"connection lost": 1}


def test_a_breakpoint_of_a_server_that_has_gone_stops_nobody(plain):
    key = "z:0:DebugIdentity"
    plain.request(key, READ_WRITE)
    options = StreamOptions(
        breakpoint_timeout_secs=60, gate_timeout_secs=0.2, connect_timeout_secs=1, retry_secs=0.1
    )
    first = GrpcSink(
        plain.url, INFO, replace(options, gate_timeout_secs=patient(1), connect_timeout_secs=patient(1))
    )
    assert first.open_gates() == {key}
    first.finish(RunEnd())
    assert first.flush(patient(10))
    plain._server.stop(None).wait()
    sink = GrpcSink(plain.url, INFO, options)
    assert sink.breakpoints() == {key}, "it was never told otherwise"
    with at_most(5):
        for _ in range(20):
            sink.write(record("z", [1.0]))
    sink.finish(RunEnd())
    assert sink.flush(patient(10))
    assert sink.counts.dropped == {"server unreachable": 20}


def write_in_child(sink, results):
    sink.write(pill("child"))
    sink.write_batch(batch_of([pill("child")]))
    sink.finish(RunEnd())
    results.put((sink.flush(1), sink.counts.dropped, os.getpid()))


def test_a_forked_process_leaves_the_run_to_its_parent(server):
    sink = GrpcSink(f"grpc://{server.address}", INFO, OPTIONS)
    sink.write(pill("a"))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=write_in_child, args=(sink, results))
    child.start()
    assert results.get(timeout=patient(20))[:2] == (True, {"written in a forked process": 2})
    child.join(patient(20))
    assert child.exitcode == 0
    sink.write(pill("b"))
    sink.finish(RunEnd())
    assert sink.flush(patient(10))
    assert sink.counts.written == the_run(server).size == 2


def test_the_end_is_said_in_one_line(server, caplog):
    sink = stream(f"grpc://{server.address}", [pill("a")])
    with caplog.at_level(logging.INFO):
        sink.sender.report()
        sink.sender.report()
    (line,) = [each.message for each in caplog.records if "arrived" in each.message]
    assert line == f"1 run for the debug server {server.address}: 1 record arrived."


def test_no_thread_is_left_per_run(server):
    before = threading.active_count()
    for index in range(20):
        stream(f"grpc://{server.address}", [pill("a")], replace(INFO, index=index, timestamp=START + index))
    assert threading.active_count() <= before + 10


@pytest.mark.parametrize(
    "bad",
    [
        {"connect_timeout_secs": 0},
        {"max_queue_bytes": -1},
        {"flush_secs": -1},
        {"token": "über"},
        {"ca_file": "/nowhere.pem"},
    ],
)
def test_options_that_cannot_be_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        StreamOptions(**bad)
