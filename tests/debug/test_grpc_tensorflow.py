"""TensorFlow's own debug server takes a PyTorch stream and reports what we sent (F16–F22, C34, C35)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensortap as tt
from tensortap.reader import DebugDumpDir, SessionDir
from tests.debug.steps import X, linear_session
from tests.patience import patient
from tests.reader.test_tensorflow_peer import peer
from tests.torch_engine.zoo import ZOO

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="streams to TensorFlow, which is not installed"
)
PROJECT = Path(__file__).parents[2]
STREAM = tt.StreamOptions(connect_timeout_secs=30, flush_secs=60)


class TensorFlowServer:
    """TensorFlow's debug test server, in a process of its own."""

    def __init__(self):
        program = [sys.executable, "-W", "ignore", "-m", "tests.debug.tf_server"]
        self._process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            text=True,
        )
        self.address = f"localhost:{json.loads(self._process.stdout.readline())}"

    def ask(self, *command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def shared_server():
    running = TensorFlowServer()
    yield running
    running.close()


@pytest.fixture
def server(shared_server):
    shared_server.ask("clear")
    return shared_server


def values(dumps):
    """What the dumps of a session hold, as the server tells it."""
    found = {}
    for dump in dumps:
        for datum in dump.dumped_tensor_data:
            value = datum.get_tensor()
            item = [str(value.dtype), list(value.shape), value.tobytes().hex()]
            found.setdefault(datum.watch_key, []).append(item)
    return found


@pytest.mark.parametrize("interceptor", ["native", "dispatch"])
def test_the_same_values_graphs_tracebacks_and_source_lines(server, tmp_path, monkeypatch, interceptor):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", interceptor)
    case = ZOO["transformer_explicit"]()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    hooks = [
        tt.GrpcDebugHook(server.address, stream=STREAM, send_traceback_and_source_code=True),
        tt.DumpingDebugHook(tmp_path / "dumps"),
    ]
    with tt.MonitoredSession(session, hooks=hooks) as monitored:
        for run in range(2):
            monitored.run("loss", case.batch(run))
    theirs, dumped = server.ask("received"), SessionDir(tmp_path / "dumps")
    dumps = [dumped.run(run) for run in range(2)]
    assert theirs["values"] == values(dumps)
    assert theirs["graphs"][-1] == {
        name: [dumps[-1].node_op_type(name), dumps[-1].node_inputs(name)] for name in dumps[-1].nodes()
    }
    assert [each["session_run_index"] for each in theirs["metadata"]] == [0, 1]
    assert [each["global_step"] for each in theirs["metadata"]] == [0, 1]
    nodes = {node.name: node for node in session.graph.nodes if node.stack}
    for name in list(nodes)[:: len(nodes) // 10]:
        frame = nodes[name].source
        file, line, function = server.ask("traceback", name)[-1]
        assert (file, line, function) == (frame.file, frame.line, frame.function)
        assert server.ask("source_line", file, line) == Path(file).read_text().splitlines()[line - 1]
    feeds, fetches = json.loads(theirs["call_keys"][0])
    assert (sorted(feeds), fetches) == (sorted(case.batch(0)), ["loss"]), "names, never values (X8)"
    assert any(file == __file__ for file, _, _ in theirs["origins"][0]), "from where the run was started"


def test_tracebacks_are_sent_again_only_when_the_graph_has_grown(server):
    """C34."""
    with tt.TensorBoardDebugWrapperSession(linear_session(), server.address, stream=STREAM) as session:
        for _ in range(4):
            session.run("loss", {"x": X})
    versions = server.ask("received")["versions"]
    assert 1 <= len(versions) <= 2
    assert versions == sorted(set(versions))


def test_gates_and_breakpoints_of_tensorflows_server(server):
    """F10–F12, F20."""
    key = ("model/addmm", 0, "DebugIdentity")
    counts, plain = [], linear_session()
    with tt.TensorBoardDebugWrapperSession(linear_session(), server.address, stream=STREAM) as session:
        for request in (None, ("watch", *key), None, ("watch", *key, True), ("unwatch", *key)):
            if request is not None:
                server.ask(*request)
            assert session.run("loss", {"x": X}) == plain.run("loss", {"x": X})
            assert session.flush(patient(30))
            counts.append(len(server.ask("received")["values"].get("model/addmm:0:DebugIdentity", [])))
    assert counts == [0, 1, 2, 3, 3]
    gated = server.ask("received")["gated"]
    assert "model/addmm:0:DebugIdentity" in gated
    assert len(gated) > 5


def test_the_directory_that_its_server_writes_has_values_and_graph(server, tmp_path):
    """F6, F22: it writes graphs that come before the metadata, which ours does as soon as the graph is known."""
    port = server.ask("write_to", str(tmp_path / "written"))
    session = linear_session()
    with tt.MonitoredSession(
        session, hooks=[tt.GrpcDebugHook(f"localhost:{port}/first", stream=STREAM)]
    ) as monitored:
        for _ in range(3):
            monitored.run("loss", {"x": X})
    written = DebugDumpDir(tmp_path / "written" / "first")
    assert written.size == 3 * len({datum.watch_key for datum in written.dumped_tensor_data}) > 30
    assert set(written.nodes()) == {node.name for node in session.graph.nodes} - {"global_step"}
    for node in session.graph.nodes[1:]:
        assert written.node_op_type(node.name) == node.op_type
        assert [each if ":" in each else f"{each}:0" for each in written.node_inputs(node.name)] == list(
            node.inputs
        )
    if os.environ.get("TENSORTAP_SLOW_TESTS"):  # starts TensorFlow once more
        (answers,) = peer("query", written.dump_root).values()
        assert answers["size"] == written.size
        assert "model/addmm" in answers["nodes"]
