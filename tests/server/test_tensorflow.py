"""TensorFlow's own runtime streams to our server, and our directory is what TensorFlow's server wrote (F, Y)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tensortap.reader import DebugDumpDir
from tensortap.server import DebugServer
from tests.patience import patient
from tests.server.tools import PROJECT, eventually, get, http

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="streams from TensorFlow, which is not installed"
)
GATED = "DebugIdentity(gated_grpc=true)"
GATED_SUMMARY = "DebugNumericSummary(gated_grpc=true)"
EVERYTHING = [
    "y",
    "bad",
    "text",
    "bytes",
    "empty",
    "empty_text",
    "large",
    "large_text",
    "many_texts",
    "narrow",
]


class TensorFlow:
    """The process that runs TensorFlow."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.tf_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=PROJECT,
        )
        assert json.loads(self._process.stdout.readline()) == "ready"

    def ask(self, **asked):
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def run(self, server, fetch, watch, **asked):
        urls = [f"grpc://{each if isinstance(each, str) else each.address}" for each in np.ravel(server)]
        return self.ask(fetch=[f"{name}:0" for name in fetch], watch=watch, urls=urls, **asked)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(patient(30))


@pytest.fixture(scope="module")
def tensorflow():
    process = TensorFlow()
    yield process
    process.close()


@pytest.fixture
def server(tmp_path):
    with DebugServer(tmp_path / "root", breakpoint_timeout=20) as running:
        yield running


def last_run(server, job="default"):
    return server.session(job).runs[-1].open()


def values(run):
    """Every value by watch key, in a form that can be compared."""
    found = {}
    for datum in run.dumped_tensor_data:
        array = np.asarray(datum.get_tensor())
        content = array.tolist() if array.dtype.kind == "O" else array.tobytes()
        found.setdefault(datum.watch_key, []).append((array.dtype.name, array.shape, content))
    return found


def test_the_directory_is_what_tensorflows_server_wrote_from_the_same_run(tensorflow, server, tmp_path):
    """F5–F9, F16–F18, F22: identity, summaries, strings, empty tensors, graphs and values beyond one chunk."""
    theirs_dir = tmp_path / "theirs"
    port = tensorflow.ask(serve=str(theirs_dir))
    watch = {name: ["DebugIdentity"] for name in [*EVERYTHING, "behind_constant"]}
    watch["y"].append("DebugNumericSummary")
    watch["bad"] += ["DebugNumericSummary", "DebugNanCount"]
    fetch = [*watch, "loss"]
    results = tensorflow.run([server, f"localhost:{port}"], fetch, watch, step=7)
    assert results[-1] == 6.0
    ours, theirs = last_run(server), DebugDumpDir(theirs_dir)
    assert ours.notices == []
    assert values(ours) == values(theirs)
    assert sorted(values(ours)) == sorted(f"{name}:0:{op}" for name, ops in watch.items() for op in ops)
    assert ours.core_metadata._replace(executor_step_index=0) == theirs.core_metadata._replace(
        executor_step_index=0
    )
    assert ours.core_metadata.global_step == 7
    assert ours.devices() == theirs.devices()
    (ours_graph,), (theirs_graph,) = ours.partition_graphs(), theirs.partition_graphs()
    assert ours_graph.ByteSize() > 4 << 20
    assert ours_graph == theirs_graph
    assert np.asarray(ours.get_tensors("large", 0, "DebugIdentity")[0]).nbytes == 4_800_000
    assert ours.get_tensors("empty", 0, "DebugIdentity")[0].shape == (0,)
    (alert,) = get(server, "/api/jobs/default/alerts")["alerts"]
    assert (alert["tensor"], alert["nan"], alert["neg_inf"]) == ("bad:0", 3, 2)


def test_later_runs_find_the_graph_that_only_the_first_one_sent(tensorflow, server):
    """F6: an executor sends its graph once; a run without its graph would be a riddle."""
    for _ in range(3):
        assert tensorflow.run(server, ["loss"], {"y": ["DebugIdentity"]}) == [6.0]
    runs = [ref.open() for ref in server.session().runs]
    assert len(runs) == 3
    for run in runs:
        assert run.node_op_type("y") == "Mul"
        assert run.node_inputs("loss")[0] == "y"
    numbers = [run.core_metadata.session_run_index for run in runs]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_gates_are_toggled_live(tensorflow, server):
    """F11, F12, F20: closed gates publish nothing; opening one op leaves the other and other servers alone."""

    def seen():
        assert tensorflow.run([server, other], ["loss"], {"y": [GATED, GATED_SUMMARY]}) == [6.0]
        return [sorted(values(last_run(each))) for each in (server, other)]

    with DebugServer(server.root.parent / "other") as other:
        assert seen() == [[], []]
        assert "y:0:DebugIdentity" in get(server, "/api/jobs/default/gates")["gated"]
        body = {"watch_keys": ["y:0:DebugIdentity"], "state": "open"}
        assert http(server, "/api/jobs/default/gates", "PUT", body)[0] == 200
        assert seen() == [["y:0:DebugIdentity"], []]
        server.request_unwatch("y", 0, "DebugIdentity")
        server.request_watch("y", 0, "DebugNumericSummary")
        other.request_watch("y", 0, "DebugIdentity")
        assert seen() == [["y:0:DebugNumericSummary"], ["y:0:DebugIdentity"]]
        http(server, "/api/jobs/default/gates", "DELETE")
        other.request_unwatch("y", 0, "DebugIdentity")
        assert seen() == [[], []]


def test_breakpoints_over_several_runs(tensorflow, server):
    """F10, F18: each run waits until it is released, and computes what it would have computed."""

    def run_in_the_background():
        results = []
        thread = threading.Thread(
            target=lambda: results.append(tensorflow.run(server, ["loss"], {"y": [GATED]}))
        )
        thread.start()
        return thread, results

    server.request_watch("y", 0, "DebugIdentity", breakpoint=True)
    assert [str(key) for key in server.breakpoints()] == ["y:0:DebugIdentity"]
    for number in range(1, 4):
        thread, results = run_in_the_background()
        (hit,) = eventually(lambda: get(server, "/api/jobs/default/breakpoints")["waiting"])
        assert (hit["id"], hit["watch_key"], hit["first_elements"]) == (
            number,
            "y:0:DebugIdentity",
            [1.0, 2.0, 3.0],
        )
        # The value can be looked at while its run waits.
        assert get(server, f"/api/jobs/default/runs/{hit['run']}/value", tensor="y:0[-1]")["value"] == 3.0
        assert results == []
        assert http(server, f"/api/jobs/default/breakpoints/{number}/release", "POST")[0] == 200
        thread.join(patient(20))
        assert results == [[6.0]]
    server.request_unwatch("y", 0, "DebugIdentity")
    assert tensorflow.run(server, ["loss"], {"y": [GATED]}) == [6.0]
    assert server.statistics.counts()["hits"] == 3


def test_a_breakpoint_that_nobody_releases_lets_go(tensorflow, tmp_path):
    """X22: without a reply the client would wait for good."""
    with DebugServer(tmp_path, breakpoint_timeout=0.2, http_port=None) as server:
        server.request_watch("y", 0, "DebugIdentity", breakpoint=True)
        assert tensorflow.run(server, ["loss"], {"y": [GATED]}) == [6.0]
        assert server.statistics.counts()["timeouts"] == 1
        server.request_unwatch("y", 0, "DebugIdentity")
        assert tensorflow.run(server, ["loss"], {"y": [GATED]}) == [6.0]


def test_the_path_of_a_url_names_the_job(tensorflow, server):
    """F7, and no path of a message ever leaves the root."""
    for path in ("alpha", "beta/../../gamma", "alpha"):
        answer = tensorflow.run(f"{server.address}/{path}", ["loss"], {"y": ["DebugIdentity"]})
        refused = ".." in path
        assert (answer == [6.0]) is not refused
    assert len(server.session("alpha")) == 2
    assert {each.name for each in server.root.iterdir()} == {"alpha"}


def test_tracebacks_and_source_files_give_graphs_their_lines(tensorflow, server):
    """F3, F4, C34: what the client's wrapper sends outside of the streams ends up with its runs."""
    assert tensorflow.ask(wrapper=server.address, fetch=["loss:0"]) == [6.0]
    run = last_run(server)
    assert run.dumped_tensor_data == []  # every gate is closed
    (path,) = run.source.source_files()
    assert path.endswith("tests/server/tf_client.py")
    (frame,) = [frame for frame in run.node_traceback("y") if frame[2] == "build"]
    assert frame[0] == path
    assert frame[3] == 'y = tf.multiply(x, w, name="y")'
    assert "loss:0:DebugIdentity" in get(server, "/api/jobs/default/gates")["gated"]


def test_nodes_that_the_runtime_made_have_the_line_of_their_op(tensorflow, server):
    """A loop and a branch are enough to make most nodes of a graph the runtime's own."""
    assert tensorflow.ask(wrapper=server.address, fetch=["controlled:0"]) == [pytest.approx(52.146263)]
    run = last_run(server)
    lines = {name: _line_in_build(run, name) for name in run.nodes()}
    made = [name for name in run.nodes() if name.startswith("loop/")]
    assert len(made) > 0.1 * len(run.nodes())
    assert {lines[name].split(" = ")[0] for name in made} == {"grown"}
    assert {lines[name].split(" = ")[0] for name in run.nodes() if name.startswith("either/")} == {"chosen"}
    assert lines["y"].startswith("y = ")
    assert lines["controlled"].startswith("tf.reduce_sum(grown + chosen")


def _line_in_build(run, name):
    try:
        return next(text for _, _, function, text in run.node_traceback(name) if function == "build")
    except KeyError:
        return None
