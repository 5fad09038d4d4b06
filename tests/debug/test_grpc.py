"""Hooks and wrapper sessions that stream to debug servers (C32–C35, F5–F12, X1, X8, X12, X22)."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.debug.streaming import grpc_urls
from tensortap.reader.session_dir import SessionDir
from tensortap.server import DebugServer, WatchKey
from tensortap.wire.debug_service import DISABLED, READ_ONLY, READ_WRITE, GraphDef, TensorProto
from tensortap.wire.events import METADATA
from tensortap.wire.tensor_proto import fill_tensor
from tests.debug.steps import X, linear_session
from tests.patience import patient
from tests.sink.peers import PlainServer, ServerProcess, at_most, free_port
from tests.torch_engine.zoo import ZOO

# Servers that answer: how long they may take must not decide what a test finds, however busy the machine is.
QUICK = tt.StreamOptions(
    connect_timeout_secs=patient(5),
    stall_timeout_secs=patient(10),
    gate_timeout_secs=patient(5),
    breakpoint_timeout_secs=patient(5),
    flush_secs=patient(20),
)
LOST = tt.StreamOptions(connect_timeout_secs=0.3, retry_secs=30, stall_timeout_secs=0.5, flush_secs=5)


@pytest.fixture(params=["native", "dispatch"])
def interceptor(request, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", request.param)
    return request.param


@pytest.fixture
def server(tmp_path):
    with DebugServer(tmp_path / "server", http_port=None) as running:
        yield running


@pytest.fixture
def plain():
    with PlainServer() as running:
        yield running


def only_session(server):
    (path,) = server.root.iterdir()
    return SessionDir(path)


def contents(dump):
    """Every value, in the order of its watch key."""
    found = {}
    for datum in dump.dumped_tensor_data:
        found.setdefault(datum.watch_key, []).append(datum.get_tensor().tobytes())
    return found


@pytest.mark.parametrize("debug_op", ["DebugIdentity", "DebugNumericSummary"])
def test_what_arrives_is_what_a_dump_has(server, interceptor, tmp_path, debug_op):
    case = ZOO["clip_and_schedule"]()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    watch = lambda fetches, feeds: tt.WatchOptions(debug_op)
    hooks = [
        tt.GrpcDebugHook(server.address, watch, stream=QUICK),
        tt.DumpingDebugHook(tmp_path / "dumps", watch),
    ]
    with tt.MonitoredSession(session, hooks=hooks) as monitored:
        for run in range(2):
            monitored.run("loss", case.batch(run))
    streamed, dumped = only_session(server), SessionDir(tmp_path / "dumps")
    for run in range(2):
        ours, theirs = streamed.run(run), dumped.run(run)
        assert contents(ours) == contents(theirs)
        assert ours.core_metadata.global_step == run
        assert sorted(ours.nodes()) == sorted(theirs.nodes())


@pytest.fixture(scope="module")
def losses():
    """Six steps of training with some hooks, and something that happens before the fourth."""

    def train(hooks, during=lambda: None):
        case = ZOO["clip_and_schedule"]()
        session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
        with tt.MonitoredSession(session, hooks=hooks) as monitored:
            found = []
            for run in range(6):
                if run == 3:
                    during()
                found.append(monitored.run("loss", case.batch(run)).tobytes())
        return found

    return train


def test_results_are_the_same_whatever_the_server_does(tmp_path, losses, interceptor):
    expected = losses([])
    assert losses([tt.GrpcDebugHook(f"localhost:{free_port()}", stream=LOST)]) == expected, "absent"
    with ServerProcess(tmp_path / "well") as server:
        assert losses([tt.GrpcDebugHook(server.address, stream=LOST)]) == expected, "well"
        assert losses([tt.GrpcDebugHook(server.address, stream=LOST)], server.stop) == expected, "stopped"
        server.go_on()
        assert losses([tt.GrpcDebugHook(server.address, stream=LOST)], server.kill) == expected, "killed"
        server.start()
    with ServerProcess(tmp_path / "slow", delay=0.2) as server:
        narrow = dataclasses.replace(LOST, max_queue_bytes=10_000)
        assert losses([tt.GrpcDebugHook(server.address, stream=narrow)]) == expected, "slow"


def test_it_works_without_a_watch_fn_and_with_the_older_tuple(server):
    """X1, C33."""
    for index, watch_fn in enumerate((None, lambda fetches, feeds: (["DebugNanCount"], r"model.*"))):
        hook = tt.GrpcDebugHook([f"grpc://{server.address}/job{index}"], watch_fn, stream=QUICK)
        with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
            session.run("loss")
    everything, some = (SessionDir(server.root / name).run(0) for name in ("job0", "job1"))
    assert {datum.debug_op for datum in everything.dumped_tensor_data} == {"DebugIdentity"}
    assert {datum.debug_op for datum in some.dumped_tensor_data} == {"DebugNanCount"}
    assert 0 < some.size < everything.size


def test_addresses(caplog):
    """C32."""
    assert grpc_urls("localhost:7000") == ["grpc://localhost:7000"]
    assert grpc_urls(["grpc://a:1", "b:2/path", "a:1"]) == ["grpc://a:1", "grpc://b:2/path"]
    with pytest.raises(TypeError, match=r"Expected type str or list in grpc_debug_server_addresses.*int"):
        tt.GrpcDebugHook(1337)
    with pytest.raises(TypeError, match=r"Expected type str in list grpc_debug_server_addresses.*int"):
        tt.GrpcDebugWrapperSession(linear_session(), ["localhost:1", 1337])
    with pytest.raises(ValueError, match="needs a host and a port"):
        tt.TensorBoardDebugHook("localhost")
    with pytest.raises(ValueError, match="is empty"):
        tt.GrpcDebugHook([])
    with pytest.raises(ValueError, match="no address of a debug server"):
        tt.GrpcDebugHook("file:///tmp/x")
    with pytest.raises(TypeError, match="watch_fn must be WatchOptions, or a function"):
        tt.GrpcDebugHook("localhost:1", "all")
    with pytest.raises(TypeError, match="StreamOptions"):
        tt.GrpcDebugHook("localhost:1", stream=5)


def test_several_servers_at_once_one_of_them_absent(server, tmp_path, interceptor):
    with DebugServer(tmp_path / "second", http_port=None) as second:
        addresses = [server.address, f"localhost:{free_port()}", f"grpc://{second.address}"]
        hook = tt.GrpcDebugHook(addresses, stream=LOST)
        with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
            for _ in range(3):
                session.run("loss")
        first, other = only_session(server), only_session(second)
        assert [contents(first.run(n)) for n in range(3)] == [contents(other.run(n)) for n in range(3)]


def test_runs_are_not_even_watched_while_all_servers_are_down(caplog):
    hook = tt.GrpcDebugHook(f"localhost:{free_port()}", stream=LOST)
    with caplog.at_level(logging.INFO), at_most(10):
        with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
            session.run("loss")
            hook.flush(5)
            for _ in range(4):
                session.run("loss")
    assert "; 4 runs not watched while it was down." in caplog.records[-1].message


def test_threads_are_filtered(plain):
    """X3."""
    hook = tt.GrpcDebugHook(plain.url, thread_name_filter="Main", stream=QUICK)
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        thread = threading.Thread(target=session.run, args=("loss",), name="Worker")
        thread.start()
        thread.join()
        session.run("loss")
    assert len(plain.streams) == 1


def test_the_wrapper_session(server, interceptor):
    with tt.GrpcDebugWrapperSession(linear_session(), server.address, stream=QUICK) as session:
        for _ in range(3):
            session.run("loss", {"x": X})
        session.make_callable("loss")()
    assert len(list(only_session(server))) == 4
    assert only_session(server).run(0).run_feed_keys_info == "('x',)"


def test_a_failed_run_arrives_with_its_error(server):
    def step(x=X):
        y = x + 1
        return {"z": (y * 2) @ y}

    session = tt.GrpcDebugWrapperSession(
        tt.torch.Session(step), server.address, stream=QUICK, pass_through_operrors=True
    )
    with pytest.raises(tt.errors.OpError), session:
        session.run("z")
    dump = only_session(server).run(0)
    assert "mat1 and mat2" in dump.source.error
    assert "mul:0:DebugIdentity" in {datum.watch_key for datum in dump.dumped_tensor_data}


def test_gates_open_and_close_from_run_to_run(plain, interceptor):
    """C34, F11, F12: nothing is sent until the server asks, from the same run on."""
    hook = tt.TensorBoardDebugHook(
        f"{plain.url}/with/path", send_traceback_and_source_code=False, stream=QUICK
    )
    key, seen = "model/addmm:0:DebugIdentity", []
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        for change in (None, READ_ONLY, None, DISABLED, READ_ONLY):
            if change is not None:
                plain.request(key, change)
            session.run("loss")
            assert hook.flush(patient(10))
            seen.append([record.watch_key for record in plain.records])
            plain.records.clear()
    assert seen == [[], [key], [key], [], [key]]
    (graph,) = {graph.content for graph in plain.graphs}
    names = {node.name for node in GraphDef.FromString(graph).node}
    assert "__dbg_model/addmm:0_0_DebugIdentity" in names, "the server learns which gates there are"


def proto(value, dtype="float32"):
    array = np.asarray(value, dtype)
    tensor = TensorProto()
    fill_tensor(tensor, array, dtype, array.shape)
    return tensor


def test_a_server_puts_a_value_in_place_at_a_breakpoint(plain, interceptor):
    """EventReply.tensor: what the original never honoured (F2)."""
    key, value = "model/addmm:0:DebugIdentity", [[1, 2], [3, 4]]
    answers = iter([None, proto(value)])
    plain.breakpoints[key] = lambda record: next(answers)
    plain.request(key, READ_WRITE)
    hook = tt.TensorBoardDebugHook(plain.url, send_traceback_and_source_code=False, stream=QUICK)
    untouched = linear_session()
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        assert session.run("loss") == untouched.run("loss"), "a reply without a value changes nothing"
        assert session.run("loss") == np.mean(np.square(value)), "the loss of the server's value"
        plain.request(key, DISABLED)
        weights = session.run("model/weight:0")
        session.run("loss")
    assert (weights == untouched.run("model/weight:0")).all(), "a constant passes no gradient on"
    assert [record.watch_key for record in plain.records] == [key, key]


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (proto([1, 2, 3]), "its shape is [2, 2], the fed value has shape [3]"),
        (proto(np.ones((2, 2)), "float64"), "it is float64, the tensor is float32"),
    ],
    ids=["shape", "dtype"],
)
def test_a_value_that_does_not_fit_is_refused_with_a_warning(plain, caplog, tensor, why):
    key = "model/addmm:0:DebugIdentity"
    plain.breakpoints[key] = lambda record: tensor
    plain.request(key, READ_WRITE)
    hook = tt.TensorBoardDebugHook(plain.url, stream=QUICK)
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        loss = session.run("loss")
    assert loss == linear_session().run("loss")
    assert "sent for model/addmm:0 was not put in place" in caplog.text
    assert why in caplog.text


def test_breakpoints_of_our_server_are_released_by_somebody_else(server):
    """Set while the program runs, met, released with a value from another thread, and unset."""
    gates, key = server.job("debugged").gates, WatchKey("model/addmm", 0, "DebugIdentity")
    value = np.array([[1, 2], [3, 4]], np.float32)

    def release():
        while not gates.hits():
            time.sleep(0.01)
        (hit,) = gates.hits()
        assert hit.record.shape == (2, 2)
        assert gates.release(hit.id, value)

    hook = tt.TensorBoardDebugHook(f"{server.address}/debugged", stream=QUICK)
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        session.run("loss")
        gates.set([key], "breakpoint")
        releasing = threading.Thread(target=release)
        releasing.start()
        assert session.run("loss") == np.mean(np.square(value))
        releasing.join(patient(10))
        gates.set([key], "closed")
        session.run("loss")
    assert [ref.open().size for ref in SessionDir(server.root / "debugged")] == [0, 1, 0]


def test_a_program_that_reads_state_only_opens_no_stream(plain):
    hook = tt.GrpcDebugHook(plain.url, stream=QUICK)
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        session.run("global_step:0")
    assert plain.streams == []


def test_the_loop_without_a_session(plain):
    model = torch.nn.Linear(3, 2)
    with tt.torch.monitor(model, hooks=[tt.GrpcDebugHook(plain.url, stream=QUICK)]) as monitor:
        for _ in range(2):
            with monitor.run():
                model(X).sum().backward()
    assert len(plain.streams) == 2
    assert plain.streams[0][0] == METADATA
    assert any(record.node_name.startswith("gradients/") for record in plain.records)
