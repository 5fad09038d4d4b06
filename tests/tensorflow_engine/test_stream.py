"""Debug servers, ours and TensorFlow's: wrappers, gates, breakpoints and values put in place in runs of TensorFlow."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import tensortap as tt
from tensortap.reader.session_dir import SessionDir
from tensortap.server import DebugServer, WatchKey
from tests.debug.test_grpc import QUICK, READ_WRITE, proto
from tests.debug.test_grpc_tensorflow import STREAM, TensorFlowServer
from tests.patience import patient
from tests.sink.peers import PlainServer

KEY = "log:0:DebugIdentity"


@pytest.fixture
def plain():
    with PlainServer() as running:
        yield running


@pytest.fixture
def server(tmp_path):
    with DebugServer(tmp_path / "server", http_port=None) as running:
        yield running


@pytest.mark.parametrize("wrapper", [tt.GrpcDebugWrapperSession, tt.TensorBoardDebugWrapperSession])
@pytest.mark.parametrize(
    "whose", ["session", "MonitoredSession", "MonitoredTrainingSession", "SingularMonitoredSession"]
)
def test_wrappers_stream_what_a_dump_has(v1, model, raw, server, tmp_path, wrapper, whose):
    session = raw if whose == "session" else getattr(v1.train, whose)()
    gated = wrapper is tt.TensorBoardDebugWrapperSession
    wrapped = wrapper(session, f"{server.address}/job", stream=QUICK)
    wrapped.run(model.loss, {model.x: model.data})
    if gated:
        server.job("job").gates.set([WatchKey("log", 0, "DebugIdentity")], "open")
    wrapped.run(model.loss, {model.x: model.data})
    dumping = tt.DumpingDebugWrapperSession(raw, tmp_path / "dumps")
    dumping.run(model.loss, {model.x: model.data})
    wrapped.close()
    dumping.close()  # what it has recorded is on its way until then
    streamed, dumped = SessionDir(server.root / "job").run(-1), SessionDir(tmp_path / "dumps").run(0)
    keys = {datum.watch_key for datum in streamed.dumped_tensor_data}
    assert keys == ({KEY} if gated else {datum.watch_key for datum in dumped.dumped_tensor_data})
    np.testing.assert_array_equal(
        streamed.get_tensors("log", 0, "DebugIdentity")[0], dumped.get_tensors("log", 0, "DebugIdentity")[0]
    )


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_server_puts_a_value_in_place_at_a_breakpoint(v1, model, plain, whose):
    """EventReply.tensor: what the original never honoured (F2)."""
    value = np.arange(8, dtype=np.float32).reshape(4, 2)
    answers = iter([None, proto(value)])
    plain.breakpoints[KEY] = lambda record: next(answers)
    plain.request(KEY, READ_WRITE)
    hook = tt.TensorBoardDebugHook(plain.url, send_traceback_and_source_code=False, stream=QUICK)
    if whose == "ours":
        monitored = tt.MonitoredSession(v1.train.ChiefSessionCreator(), hooks=[hook])
    else:
        monitored = v1.train.MonitoredSession(hooks=[hook])
    with monitored as session:
        losses = [session.run(model.loss, {model.x: model.data}) for _ in range(3)]
    assert losses[0] == pytest.approx(np.log(1.5))
    assert value.mean() in losses, "the loss of the server's value"


def test_a_value_that_does_not_fit_is_refused_with_a_warning(model, raw, plain, caplog):
    plain.breakpoints[KEY] = lambda record: proto([1, 2, 3])
    plain.request(KEY, READ_WRITE)
    wrapped = tt.TensorBoardDebugWrapperSession(raw, plain.url, stream=QUICK)
    losses = [wrapped.run(model.loss, {model.x: model.data}) for _ in range(2)]
    wrapped.close()
    assert losses == [pytest.approx(np.log(1.5))] * 2
    assert "sent for log:0 was not put in place: it is float32[3], the tensor is float32[4, 2]" in caplog.text


def test_a_run_waits_until_somebody_releases_it(model, raw, server):
    gates, key = server.job("debugged").gates, WatchKey("log", 0, "DebugIdentity")
    value = np.full((4, 2), 7, np.float32)

    def release():
        deadline = time.monotonic() + patient(20)
        while not gates.hits() and time.monotonic() < deadline:
            time.sleep(0.01)
        (hit,) = gates.hits()
        assert hit.record.shape == (4, 2)
        assert gates.release(hit.id, value)

    wrapped = tt.TensorBoardDebugWrapperSession(raw, f"{server.address}/debugged", stream=QUICK)
    wrapped.run(model.loss, {model.x: model.data})
    gates.set([key], "breakpoint")
    releasing = threading.Thread(target=release, daemon=True)
    releasing.start()
    assert wrapped.run(model.loss, {model.x: model.data}) == 7
    releasing.join(patient(10))
    gates.set([key], "closed")
    assert wrapped.run(model.loss, {model.x: model.data}) == pytest.approx(np.log(1.5))
    wrapped.close()


def test_a_breakpoint_in_a_loop_is_met_in_every_iteration(tf, v1, plain):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [], name="x")
        _, total = tf.while_loop(
            lambda i, t: i < 3, lambda i, t: (i + 1, tf.add(t, 1.0, name="more")), [0, x], name="loop"
        )
        key = "loop/body/more:0:DebugIdentity"
        answers = iter([None, proto(np.float32(100.0)), None])
        plain.breakpoints[key] = lambda record: next(answers)
        plain.request(key, READ_WRITE)
        wrapped = tt.TensorBoardDebugWrapperSession(v1.Session(), plain.url, stream=QUICK)
        found = [wrapped.run(total, {x: 0.0}) for _ in range(2)]
        wrapped.close()
    assert 101.0 in found  # 1, then 100 in the place of 2, then 101


def test_tensorflows_own_debug_server_gets_the_same(model, raw, tmp_path):
    server = TensorFlowServer()
    try:
        wrapped = tt.GrpcDebugWrapperSession(
            raw, server.address, stream=STREAM, send_traceback_and_source_code=True
        )
        wrapped.run(model.loss, {model.x: model.data})
        wrapped.close()
        received = server.ask("received")
        dtype, shape, data = received["values"][KEY][0]
        traceback = server.ask("traceback", "log")
    finally:
        server.close()
    assert (dtype, shape) == ("float32", [4, 2])
    np.testing.assert_allclose(np.frombuffer(bytes.fromhex(data), np.float32), np.log(1.5), rtol=1e-6)
    assert received["graphs"][0]["log"][0] in ("Log", "_UnaryOpsComposition")
    assert traceback[-1][0].endswith("conftest.py")
