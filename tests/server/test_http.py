"""The HTTP interface of a real server."""

from __future__ import annotations

import io
import re
import socket
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from starlette.responses import JSONResponse

from tensortap.records import Frame, Node, TensorSpec
from tensortap.server import DebugServer
from tensortap.server.api import routes
from tensortap.server.page_api import OPEN_PATHS, PageApi
from tensortap.wire.events import graph_events
from tensortap.wire.graph_def import nodes_to_proto
from tests.patience import patient
from tests.server.tools import device, get, http, identity, metadata, pill, stream, summary

JOB = "/api/jobs/gpt"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    nodes = [
        Node("x", "Placeholder", device=device(), outputs=(TensorSpec("float32", (2, 3)),)),
        Node("fc", "aten::mm", ("x:0",), device=device(), stack=(Frame("train.py", 12, "step"),)),
    ]
    graph = nodes_to_proto(nodes).SerializeToString()
    with DebugServer(tmp_path_factory.mktemp("http")) as running:
        for rank in (0, 1):
            for index in range(3):
                drift = 0.5 if (rank, index) == (1, 2) else 0.0
                start = 1_700_000_000_000_000 + index
                stream(
                    running,
                    *graph_events(graph, device(rank), start),
                    metadata(index, step=10 * index, rank=rank, job="gpt", output_names=("loss",)),
                    identity("fc", np.arange(6, dtype=np.float32).reshape(2, 3) + rank, rank, start + 1),
                    summary("w", pill(mean=index + drift, nan=float(index == 1)), rank, start + 2),
                    summary("act", pill(mean=rank), rank, start + 3),
                )
        yield running


def test_health_check_and_metrics(server):
    assert http(server, "/healthz") == (200, {"status": "ok"})
    status, text = http(server, "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    assert status == 200
    assert lines["tensortap_server_records_total"] == "18"
    assert lines["tensortap_server_runs_total"] == "6"
    assert float(lines["tensortap_server_resident_memory_bytes"]) > 1 << 20
    for line in text.decode().splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+ [\d.e+]+", line), line


def test_jobs_and_runs(server):
    (job,) = get(server, "/api/jobs")["jobs"]
    assert (job["id"], job["runs"], job["tasks"], job["alerts"]) == ("gpt", 6, [0, 1], 2)
    assert get(server, JOB) == job
    runs = get(server, f"{JOB}/runs", task=1)["runs"]
    assert [(run["run"], run["step"], run["status"], run["records"]) for run in runs] == [
        (0, 0, "finished", 3),
        (1, 10, "finished", 3),
        (2, 20, "finished", 3),
    ]
    assert len(get(server, f"{JOB}/runs", limit=2)["runs"]) == 2
    run = get(server, f"{JOB}/runs/{runs[1]['name']}")
    assert (run["task"], run["metadata"]["output_names"], run["notices"]) == (1, ["loss"], [])
    assert get(server, f"{JOB}/runs/last")["metadata"]["global_step"] == 20


def test_tensors_and_health(server):
    run = f"{JOB}/runs/{get(server, f'{JOB}/runs', task=0)['runs'][1]['name']}"
    tensors = get(server, f"{run}/tensors")["tensors"]
    assert [each["tensor"] for each in tensors] == ["fc:0", "w:0", "act:0"]
    assert tensors[0]["shape"] == [2, 3]
    assert tensors[1]["pill"]["nan"] == 1
    assert tensors[1]["pill"]["shape"] == [8]
    assert [each["tensor"] for each in get(server, f"{run}/tensors", bad=1)["tensors"]] == ["w:0"]
    assert get(server, f"{run}/tensors", name="ac", limit=1)["total"] == 1
    assert get(server, f"{JOB}/tensors", debug_op="DebugNumericSummary")["tensors"] == ["act:0", "w:0"]
    columns = get(server, f"{JOB}/health", tensor="w:0")["columns"]
    assert sorted(zip(columns["task"], columns["step"], columns["mean"], strict=True)) == [
        (0, 0, 0),
        (0, 10, 1),
        (0, 20, 2),
        (1, 0, 0),
        (1, 10, 1),
        (1, 20, 2.5),
    ]


def test_values_by_slice(server):
    run = f"{JOB}/runs/{get(server, f'{JOB}/runs', task=0)['runs'][0]['name']}"
    assert get(server, f"{run}/value", tensor="fc:0")["value"] == [[0, 1, 2], [3, 4, 5]]
    assert get(server, f"{run}/value", tensor="fc:0[-1, ::2]")["value"] == [3, 5]
    assert get(server, f"{run}/value", tensor="w")["debug_op"] == "DebugNumericSummary"
    with urllib.request.urlopen(f"{server.http_address}{run}/value?tensor=fc:0&format=npy") as response:
        assert np.load(io.BytesIO(response.read())).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_findings_are_told_as_check_tells_them(server):
    assert get(server, f"{JOB}/findings")["findings"] == []
    assert http(server, "/api/jobs/nobody/findings")[0] == 404


def test_graph_and_ranks(server):
    nodes = get(server, f"{JOB}/runs/last/graph")["nodes"]
    assert nodes[1]["name"] == "fc"
    assert nodes[1]["inputs"] == ["x"]
    assert nodes[1]["source"] == ["train.py:12 in step"]
    found = get(server, f"{JOB}/ranks")
    assert (found["ranks"], found["runs"]) == ([0, 1], 3)
    (diverged,) = found["diverged"]
    assert (diverged["tensor"], diverged["run"], diverged["step"], diverged["equal_runs"]) == (
        "w:0",
        2,
        20,
        2,
    )
    assert diverged["values"]["1"][10] == 2.5
    assert [each["tensor"] for each in found["different"]] == ["act:0"]


def test_gates(server):
    body = {"watch_keys": ["fc:0:DebugIdentity"], "state": "breakpoint"}
    status, answer = http(server, f"{JOB}/gates", "PUT", body)
    assert (status, answer["gates"]) == (200, [{"watch_key": "fc:0:DebugIdentity", "state": "breakpoint"}])
    assert get(server, f"{JOB}/breakpoints") == {"waiting": []}
    status, answer = http(server, f"{JOB}/gates?watch_key=fc:0:DebugIdentity", "DELETE")
    assert answer["gates"] == [{"watch_key": "fc:0:DebugIdentity", "state": "closed"}]


def test_a_gate_may_be_set_before_its_job_comes(tmp_path):
    with DebugServer(tmp_path) as server:
        body = {"watch_keys": ["fc:0:DebugIdentity"], "state": "open"}
        assert http(server, "/api/jobs/later/gates", "PUT", body)[0] == 200
        (reply,) = stream(server, metadata(0, rank=0, job="later"))
        assert reply.debug_op_state_changes[0].node_name == "fc"


def test_a_job_is_also_found_by_a_name_that_no_directory_can_have(tmp_path):
    with DebugServer(tmp_path) as server:
        body = {"watch_keys": ["fc:0:DebugIdentity"], "state": "open"}
        assert http(server, "/api/jobs/caf%C3%A9/gates", "PUT", body)[0] == 200
        (reply,) = stream(server, metadata(0, rank=0, job="café"))
        assert reply.debug_op_state_changes[0].node_name == "fc"
        (job,) = get(server, "/api/jobs")["jobs"]
        assert get(server, "/api/jobs/caf%C3%A9") == get(server, f"/api/jobs/{job['id']}")


def test_who_speaks_no_http_is_answered_and_not_logged(server, caplog):
    host, _, port = server.http_address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=patient(30)) as knocking:
        knocking.sendall(b"\x00\x01\r\n\r\n")
        assert knocking.recv(100).startswith(b"HTTP/1.1 400")
    assert not caplog.records


MISTAKES = [
    ("/api/nothing", 404, "Not Found"),
    ("/api/jobs/gtp", 404, "there are gpt"),
    ("/api/jobs/..%2F..%2Fetc/runs", 404, "Not Found|no job"),
    (f"{JOB}/runs/run_1_1", 404, "has no run 'run_1_1'"),
    (f"{JOB}/runs/..", 404, ""),
    (f"{JOB}/runs?limit=many", 400, "whole number"),
    (f"{JOB}/runs?limit=-5", 400, "limit must be at least 1, got -5"),
    (f"{JOB}/runs/last/tensors?offset=-3", 400, "offset must be at least 0"),
    (f"{JOB}/runs/last/value", 400, "Say which tensor"),
    (f"{JOB}/runs/last/value?tensor=fd:0", 404, "Did you mean 'fc:0'"),
    (f"{JOB}/runs/last/value?tensor=fc:0[9]", 400, r"shape is \[2, 3\]"),
    (f"{JOB}/runs/last/value?tensor=fc:0[__import__]", 400, "no index or slice"),
    (f"{JOB}/runs/last/value?tensor=fc:0&execution=4", 404, "executed 1 times"),
    (f"{JOB}/runs/last/value?tensor=fc:0&debug_op=DebugHash", 404, "it has DebugIdentity"),
    (f"{JOB}/runs/last/source?path=/etc/passwd", 404, "no source file"),
    (f"{JOB}/health?tensor=wv:0", 404, "Did you mean 'w:0'"),
]


@pytest.mark.parametrize(("path", "status", "text"), MISTAKES)
def test_mistakes_are_explained(server, path, status, text):
    found, answer = http(server, path)
    assert found == status
    assert re.search(text, answer["error"])


BAD_BODIES = [
    ("PUT", "gates", {"watch_keys": ["fc:0:DebugIdentity"], "state": "ajar"}, "breakpoint, closed, open"),
    ("PUT", "gates", {"watch_keys": "fc:0:DebugIdentity", "state": "open"}, "must be a list"),
    ("PUT", "gates", {"watch_keys": ["fc"], "state": "open"}, "no watch key"),
    ("PUT", "gates", {"watch_keys": ["../x:0:DebugIdentity"], "state": "open"}, "'..' as a part"),
    ("PUT", "gates", {"watch_keys": ["\ud800:0:DebugIdentity"], "state": "open"}, "half a character"),
    ("PUT", "gates", [1], "must be a JSON object"),
    ("POST", "breakpoints/77/release", {}, "Nobody waits"),
]


@pytest.mark.parametrize(("method", "route", "body", "text"), BAD_BODIES)
def test_bad_bodies_are_explained(server, method, route, body, text):
    status, answer = http(server, f"{JOB}/{route}", method, body)
    assert status in (400, 404)
    assert text in answer["error"]


def test_pages_of_other_sites_are_kept_out(server):
    """A browser on this machine may be led here by anybody."""
    assert http(server, "/api/jobs", headers={"Host": "evil.example"})[0] == 403
    assert http(server, "/api/jobs", headers={"Origin": "http://evil.example"})[0] == 403
    for nonsense in ("[", "[::1"):
        assert http(server, "/api/jobs", headers={"Host": nonsense})[0] == 403
        assert http(server, "/api/jobs", headers={"Origin": f"http://{nonsense}"})[0] == 403
    own = server.http_address
    assert http(server, "/api/jobs", headers={"Origin": own})[0] == 200
    assert http(server, "/api/jobs", "POST")[0] == 405


def test_every_route_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    for method, path, _ in [*routes(None), *PageApi(None).routes()]:
        if path in OPEN_PATHS:
            continue
        route = path.replace("{id:int}", "{id}")
        assert re.search(rf"`{method} {re.escape(route)}`", page), (
            f"{method} {route} is not in docs/server.md"
        )


def test_whoever_ends_the_server_reads_nothing_of_the_requests_that_this_cuts_off(
    tmp_path, monkeypatch, caplog
):
    begun, go_on = threading.Event(), threading.Event()

    def slow(request):
        begun.set()
        go_on.wait(patient(20))
        return JSONResponse({})

    monkeypatch.setattr("tensortap.server.http.routes", lambda server: [("GET", "/slow", slow)])
    with DebugServer(tmp_path) as running:
        asking = threading.Thread(target=http, args=(running, "/slow"))
        asking.start()
        assert begun.wait(patient(10))
    go_on.set()
    asking.join(patient(10))
    assert not asking.is_alive()
    assert caplog.messages == []
