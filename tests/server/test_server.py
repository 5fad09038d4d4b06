"""The server in a test or a notebook: what it receives, keeps, tells and forgets."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import ssl
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest

from tensortap.commands import main
from tensortap.reader import SessionDir
from tensortap.records import Node, TensorSpec
from tensortap.server import DebugServer, Limits, StreamHandler, WatchKey
from tensortap.wire.debug_service import (
    DISABLED,
    PATIENCE_KEY,
    READ_ONLY,
    READ_WRITE,
    SEND_EVENTS,
    EventReply,
)
from tensortap.wire.events import RunEnding, graph_events, run_end_event, tensor_events
from tensortap.wire.graph_def import nodes_to_proto
from tensortap.wire.values import numpy_dtype
from tests.patience import patient
from tests.server.tools import (
    device,
    events,
    eventually,
    get,
    http,
    identity,
    metadata,
    open_stream,
    pill,
    pill_batch,
    stream,
    summary,
)


@pytest.fixture
def server(tmp_path):
    with DebugServer(tmp_path / "root") as running:
        yield running


def state_changes(reply):
    return {
        f"{each.node_name}:{each.output_slot}:{each.debug_op}": each.state
        for each in reply.debug_op_state_changes
    }


def test_a_stream_becomes_a_run(server):
    (reply,) = stream(server, metadata(3, step=12), identity("fc", [1.0, 2.0]), summary("fc", pill()))
    assert state_changes(reply) == {}
    (ref,) = server.session().runs
    run = ref.open()
    assert (ref.index, run.core_metadata.global_step, run.notices) == (3, 12, [])
    assert run.get_tensors("fc", 0, "DebugIdentity")[0].tolist() == [1.0, 2.0]
    assert run.counts == {"written": 2, "written_bytes": 136, "dropped": 0}
    assert len(server.session().history("fc:0")) == 1


def test_batches_from_our_clients(server):
    names = [f"layer/{place}" for place in range(500)]
    pills = [pill(nan=float(place == 7), mean=place) for place in range(500)]
    end = run_end_event(RunEnding("it failed", {"dropped": 3, "dropped: queue full": 3}))
    stream(server, metadata(0, rank=2, job="ours"), pill_batch(names, pills, rank=2), end)
    run = server.session("ours").run(0)
    assert (run.source.task, run.size, run.error) == (2, 500, "it failed")
    assert run.counts["dropped"] == 3
    assert run.counts["written"] == 500
    assert [datum.tensor_name for datum in run.find(_bad)] == ["layer/7:0"]
    (alert,) = server.job("ours").alerts.report()
    assert (alert.tensor, alert.nan, alert.device) == ("layer/7:0", 1, device(2))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "float64"]
)
def test_values_of_every_type_raise_alerts(server, dtype):
    kind = numpy_dtype(dtype)
    values = np.array([1.0, np.nan, 2.0]).astype(kind)
    stream(server, metadata(), identity("good", values[[0, 2]]), identity("bad", values))
    (alert,) = server.job("default").alerts.report()
    assert (alert.tensor, alert.nan, alert.neg_inf, alert.pos_inf) == ("bad:0", 1, 0, 0)


def _bad(datum, tensor):
    return tensor[2] > 0


def test_a_run_is_readable_while_it_is_received(server, capsys):
    released = []

    def slowly():
        yield from events(metadata(0), identity("first", [1.0]))
        eventually(lambda: released)
        yield from events(identity("second", [2.0]))

    call = open_stream(server, slowly())
    eventually(lambda: len(server.session()) if (server.root / "default").exists() else 0)
    run = server.session().run(0, validate=False)
    eventually(lambda: run.refresh() or run.size == 1)
    assert run.notices == ["The run has not finished: it is still being written, or its process died."]
    assert main(["ls", str(server.root / "default"), "--run", "0"]) == 0
    assert "first:0" in capsys.readouterr().out
    released.append(True)
    list(call)
    run.refresh()
    assert [datum.node_name for datum in run.dumped_tensor_data] == ["first", "second"]
    assert run.notices == []


def test_graphs_are_kept_and_shared_by_the_runs_of_an_executor(server):
    """F6: only the first run of an executor brings its graph."""
    nodes = [Node("fc", "MatMul", device=device(), outputs=(TensorSpec("float32", (2,)),))]
    graph = nodes_to_proto(nodes).SerializeToString()
    replies = stream(server, *graph_events(graph, device(), 17), metadata(0), identity("fc", [1.0]))
    assert len(replies) == 2  # one for the graph, one for the metadata (F18)
    stream(server, metadata(1), identity("fc", [1.0]))
    stream(server, metadata(2, output_names=("other",)), identity("fc", [1.0]))
    first, second, other = (ref.open() for ref in server.session().runs)
    assert first.node_op_type("fc") == second.node_op_type("fc") == "MatMul"
    assert not other.loaded_partition_graphs() or other.partition_graphs() == []


def test_jobs_and_ranks_are_told_apart(server):
    for rank in (0, 1, 3):
        stream(server, metadata(0, rank=rank, job="launch"), summary("w", pill(), rank))
    stream(server, metadata(0, job="by/path"), identity("x", [1.0], rank=5))
    session = server.session("launch")
    assert session.tasks() == [0, 1, 3]
    assert session.run(0, task=3).devices() == [device(3)]
    assert server.session("by/path").tasks() == [5]  # TensorFlow says it with its devices
    assert {job["name"] for job in get(server, "/api/jobs")["jobs"]} == {"launch", "by/path"}


def test_a_stream_without_metadata_follows_the_runs_of_its_job(server):
    """F5: the other processes of a distributed session keep one stream open and send no metadata."""
    go = []

    def worker():
        yield from events(identity("w", [1.0], rank=1))
        eventually(lambda: go)
        yield from events(identity("w", [2.0], rank=1))

    stream(server, metadata(4), identity("m", [1.0]))
    call = open_stream(server, worker())
    eventually(lambda: len(server.session()) == 2)
    stream(server, metadata(5), identity("m", [1.0]))
    go.append(True)
    list(call)
    values = {
        index: server.session().run(index, task=1).get_tensors("w", 0, "DebugIdentity")[0].tolist()
        for index in (4, 5)
    }
    assert values == {4: [1.0], 5: [2.0]}


def test_every_stream_begins_with_all_gates(server):
    """F11, F18: clients keep gates from run to run, and the server must know what they believe."""
    server.request_watch("a", 0, "DebugIdentity")
    server.request_watch("b", 1, "DebugHash", breakpoint=True)
    expected = {"a:0:DebugIdentity": READ_ONLY, "b:1:DebugHash": READ_WRITE}
    for run in range(2):
        assert state_changes(stream(server, metadata(run))[0]) == expected
    server.request_unwatch("a", 0, "DebugIdentity")
    assert state_changes(stream(server, metadata(2))[0]) == {**expected, "a:0:DebugIdentity": DISABLED}
    assert server.breakpoints() == [WatchKey("b", 1, "DebugHash")]


def test_changes_during_a_run_come_at_its_end(server):
    def slowly():
        yield metadata(0)
        eventually(lambda: server.breakpoints())

    call = open_stream(server, slowly())
    assert state_changes(next(call)) == {}
    server.request_watch("a", 0, "DebugIdentity", breakpoint=True)
    assert state_changes(next(call)) == {"a:0:DebugIdentity": READ_WRITE}


def test_a_breakpoint_is_released_with_another_value(server):
    server.request_watch("x", 0, "DebugIdentity", breakpoint=True)
    call = open_stream(server, events(metadata(0), identity("x", np.float32([[1, 2], [3, 4]]))))
    next(call)
    (hit,) = eventually(lambda: get(server, "/api/jobs/default/breakpoints")["waiting"])
    path = f"/api/jobs/default/breakpoints/{hit['id']}/release"
    status, answer = http(server, path, "POST", {"value": [1, 2, 3]})
    assert status == 400
    assert "it needs [2, 2]" in answer["error"]
    assert http(server, path, "POST", {"value": [[5, 6], [7, "nan"]]})[0] == 200
    reply = next(call)
    assert np.frombuffer(reply.tensor.tensor_content, np.float32)[:3].tolist() == [5, 6, 7]
    assert [dim.size for dim in reply.tensor.tensor_shape.dim] == [2, 2]
    assert http(server, path, "POST")[0] == 404


def test_callbacks_see_what_a_stream_brings(tmp_path, caplog):
    """F16: one handler per stream; what it returns at a breakpoint goes back to the client."""
    seen = []

    class Handler(StreamHandler):
        def on_metadata(self, metadata):
            seen.append(("metadata", metadata.info.index))

        def on_graph(self, graph, device, timestamp):
            seen.append(("graph", graph.node[0].name, device, timestamp))

        def on_tensor(self, record):
            seen.append(("tensor", record.watch_key))
            if record.node_name == "broken":
                raise KeyError("a bug of the user")
            if record.node_name == "wrong":
                return np.zeros((3, 3))
            return 9.0 if record.node_name == "x" else None

        def on_end(self, error):
            seen.append(("end", error))

    graph = nodes_to_proto([Node("fc", "MatMul")]).SerializeToString()
    with DebugServer(tmp_path, http_port=None, handler=Handler, breakpoint_timeout=0) as server:
        for name in ("x", "wrong"):
            server.request_watch(name, 0, "DebugIdentity", breakpoint=True)
        with caplog.at_level(logging.CRITICAL, "tensortap.server"):
            replies = stream(
                server,
                *graph_events(graph, device(), 17),
                metadata(0),
                identity("broken", [0.0]),
                identity("wrong", [1.0]),
                identity("x", [1.0]),
                pill_batch(["p"], [pill()]),
            )
        assert not replies[-2].HasField("tensor")
        assert np.frombuffer(replies[-1].tensor.tensor_content) == [9.0]
        assert server.statistics.counts()["failures"] == 2
        assert server.session().run(0, validate=False).size == 4
    assert seen == [
        ("graph", "fc", device(), 17),
        ("metadata", 0),
        ("tensor", "broken:0:DebugIdentity"),
        ("tensor", "wrong:0:DebugIdentity"),
        ("tensor", "x:0:DebugIdentity"),
        ("tensor", "p:0:DebugNumericSummary"),
        ("end", None),
    ]


def test_a_restarted_server_goes_on(tmp_path):
    """Runs are added, and gates, breakpoints and alerts are still known: clients still believe in them."""
    with DebugServer(tmp_path) as server:
        server.request_watch("x", 0, "DebugIdentity")
        stream(server, metadata(0), summary("bad", pill(nan=1)))
    with DebugServer(tmp_path) as server:
        (reply,) = stream(server, metadata(1), summary("bad", pill(nan=1), timestamp=1_700_000_000_900_000))
        assert state_changes(reply) == {"x:0:DebugIdentity": READ_ONLY}
        (alert,) = get(server, "/api/jobs/default/alerts")["alerts"]
        assert (alert["nan"], alert["first"] < alert["last"]) == (2, True)
        assert http(server, "/api/jobs/default/alerts", "DELETE")[0] == 200
    assert len(SessionDir(tmp_path / "default").history("bad:0")) == 2
    with DebugServer(tmp_path) as server:
        assert get(server, "/api/jobs/default/alerts")["alerts"] == []


def test_alerts_keep_the_first_hundred_tensors(server):
    """F25."""
    names = [f"t{number:03}" for number in range(150)]
    stream(server, metadata(0), pill_batch(names, [pill(pos_inf=2.0)] * 150))
    stream(server, metadata(1), identity("whole", np.float32([1, np.nan, -np.inf]), timestamp=5))
    answer = get(server, "/api/jobs/default/alerts")
    assert [alert["tensor"] for alert in answer["alerts"]] == [f"t{number:03}:0" for number in range(100)]
    assert answer["left_out"] == 51
    assert [alert.tensor for alert in server.job("default").alerts.report(tensor="t00[12]")] == [
        "t001:0",
        "t002:0",
    ]
    assert answer["alerts"][0]["pos_inf"] == 1


def test_retention_by_age_and_bytes(tmp_path):
    now = time.time()
    with DebugServer(tmp_path, max_bytes=42_000, max_age=3600, http_port=None) as server:
        for number, age in enumerate((9000, 5000, 100, 90, 80, 70)):
            start = int((now - age) * 1e6)
            stream(server, metadata(number, timestamp=start), identity("x", np.zeros(1250)))
        server.reception.disk.sweep()
        # Two were too old; of four times 10 kB and a little only three fit with room to spare.
        assert [ref.index for ref in server.session().runs] == [3, 4, 5]
        assert len(list((tmp_path / "default").glob(".run*"))) == 0
        assert server.statistics.counts()["runs_removed"] == 3


def test_a_run_that_alone_fills_the_disk_loses_records_not_others(tmp_path):
    with DebugServer(tmp_path, max_bytes=30_000, http_port=None) as server:
        stream(server, metadata(0), *(identity(f"x{place}", np.zeros(1000)) for place in range(10)))
        run = server.session().run(0)
        assert run.size == 3
        assert run.counts["dropped: disk budget of the server"] == 7
        assert "The writer left records out" in run.notices[0]


def test_a_full_disk_is_counted_and_survived(tmp_path, caplog):
    (tmp_path / "default").mkdir()
    with DebugServer(tmp_path, http_port=None) as server:
        run = metadata(0)

        def messages():
            yield run
            yield from events(identity("before", [1.0]))
            eventually(lambda: list((tmp_path / "default").glob("run*/*.index")))
            # A data file that is there already cannot be made: as bad as a disk that refuses.
            (index,) = (tmp_path / "default").glob("run*/*.index")
            index.with_suffix(".data").write_bytes(b"")
            yield from events(identity("large", np.zeros(1000)), identity("after", [2.0]))

        list(open_stream(server, messages()))
        (ref,) = server.session().runs
        assert [datum.node_name for datum in ref.open().dumped_tensor_data] == ["before", "after"]
        assert ref.open().counts["dropped: write failed"] == 1
    assert "Writing failed" in caplog.text


def test_runs_that_cannot_be_stored_are_refused_and_it_is_said_once(tmp_path, caplog):
    (tmp_path / "gpt").write_text("in the way")
    with DebugServer(tmp_path, http_port=None) as server:
        for index in range(3):
            with pytest.raises(grpc.RpcError, match="cannot make a run directory"):
                stream(server, metadata(index, rank=0, job="gpt"), identity("x", [1.0]))
        assert server.statistics.counts()["failures"] == 3
        stream(server, metadata(0, rank=0, job="other"), identity("x", [1.0]))
        assert len(server.session("other").runs) == 1
    (said,) = caplog.messages
    assert "File exists. Such runs are refused and counted." in said


def test_a_token_is_needed_where_others_can_connect(tmp_path):
    with pytest.raises(ValueError, match=r"give it a token.*SSH tunnel"):
        DebugServer(tmp_path, host="0.0.0.0")
    with pytest.raises(ValueError, match="both files"):
        DebugServer(tmp_path, tls_cert="cert.pem")
    with pytest.raises(ValueError, match="printable"):
        DebugServer(tmp_path, token="a b")


def test_the_token_is_checked_everywhere(tmp_path):
    """X17."""
    with DebugServer(tmp_path, token="secret") as server:
        for wrong in (None, "secre", "secret2"):
            with pytest.raises(grpc.RpcError) as caught:
                stream(server, metadata(0), token=wrong)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        stream(server, metadata(0), token="secret")
        assert len(server.session()) == 1
        assert http(server, "/healthz")[0] == 200
        assert http(server, "/api/jobs")[0] == 401
        assert http(server, "/api/jobs", headers={"Authorization": "Bearer wrong"})[0] == 401
        assert http(server, "/api/jobs", headers={"Authorization": "Bearer secret"})[0] == 200


def test_ports_are_not_shared(tmp_path):
    with DebugServer(tmp_path / "a") as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(OSError, match=f"Port {port}"):
            DebugServer(tmp_path / "b", port=port).start()
        http_port = int(server.http_address.rpartition(":")[2])
        with pytest.raises(OSError, match=f"Port {http_port}"):
            DebugServer(tmp_path / "b", http_port=http_port).start()


def test_a_server_has_one_life(tmp_path):
    """F21, except that stopping twice is harmless."""
    server = DebugServer(tmp_path, http_port=None).start()
    with pytest.raises(ValueError, match="running"):
        server.start()
    server.stop()
    server.stop()
    with pytest.raises(ValueError, match="stopped"):
        server.start()


def test_stopping_completes_runs_and_releases_clients(tmp_path):
    server = DebugServer(tmp_path).start()
    server.request_watch("x", 0, "DebugIdentity", breakpoint=True)

    over = threading.Event()

    def endless():
        yield from events(metadata(0), identity("x", [1.0]))
        over.wait(patient(60))

    call = open_stream(server, endless())
    next(call)
    eventually(lambda: server.job("default").gates.hits())
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < patient(10)
    run = SessionDir(tmp_path / "default").run(0)
    assert (run.size, run.error) == (1, "The stream broke off before the run ended.")
    over.set()


def test_limits_are_for_one_stream(tmp_path):
    with DebugServer(tmp_path, http_port=None, limits=Limits(devices=2, jobs=2)) as server:
        with pytest.raises(grpc.RpcError, match="more than 2 devices"):
            stream(server, metadata(0), *(identity("x", [1.0], rank) for rank in range(3)))
        stream(server, metadata(1, job="second"), identity("x", [1.0]))
        with pytest.raises(grpc.RpcError, match="2 jobs already"):
            stream(server, metadata(1, job="third"), identity("x", [1.0]))
        assert sorted(os.listdir(tmp_path)) == ["default", "second"]


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(example, {})
    assert "127.0.0.1" in capsys.readouterr().out


def test_tls(tmp_path):
    """With certificates both ports speak TLS only."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("needs openssl to make a certificate")
    with pytest.raises(ValueError, match="no certificate and its key"):
        DebugServer(tmp_path / "root", tls_cert=key, tls_key=key).start()
    with DebugServer(tmp_path / "root", tls_cert=cert, tls_key=key, token="secret") as server:
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(server.address, credentials) as channel:
            call = channel.stream_stream(SEND_EVENTS)
            list(call(events(metadata(0)), metadata=[("authorization", "Bearer secret")]))
        assert len(server.session()) == 1
        with pytest.raises(grpc.RpcError):
            stream(server, metadata(1), token="secret")
        context = ssl.create_default_context(cafile=str(cert))
        with urllib.request.urlopen(f"{server.http_address}/healthz", context=context) as response:
            assert response.status == 200


def test_a_client_that_missed_the_end_of_a_breakpoint_is_let_go(server):
    """X22: it sent its value, and waits, before it read that nobody wants it to wait any more."""
    server.request_watch("x", 0, "DebugIdentity", breakpoint=True)
    stream(server, metadata(0, rank=0))
    server.request_unwatch("x", 0, "DebugIdentity")
    opening, at_value = stream(server, metadata(1, rank=0), identity("x", [1.0]), identity("y", [1.0]))
    assert state_changes(opening) == {"x:0:DebugIdentity": DISABLED}
    assert state_changes(at_value) == {}


def test_the_server_gives_up_before_its_client_does(server):
    """Otherwise the client would go on sending to a server that does not listen."""
    server.request_watch("x", 0, "DebugIdentity", breakpoint=True)
    channel = grpc.insecure_channel(server.address)
    call = channel.stream_stream(SEND_EVENTS)
    began = time.monotonic()
    with channel:
        messages = events(metadata(0, rank=0), identity("x", [1.0]))
        _, at_value = map(EventReply.FromString, call(messages, metadata=[(PATIENCE_KEY, "0.3")]))
    assert time.monotonic() - began < patient(5)
    assert server.statistics.counts()["timeouts"] == 1
    # Nobody is there, and the next run would wait as long again.
    assert state_changes(at_value) == {"x:0:DebugIdentity": READ_ONLY}
    assert server.breakpoints() == []


def test_graphs_that_the_server_has_are_named_by_their_digest(server):
    """Also when another job brought them: our clients send a graph once per server."""
    graph = nodes_to_proto([Node("w", "Variable", device=device())]).SerializeToString()
    digest = hashlib.sha256(graph).hexdigest()
    end = run_end_event(RunEnding(graphs={device(): digest, device(7): "0" * 64}))
    stream(
        server, metadata(0, rank=0, job="a"), summary("w", pill()), *graph_events(graph, device(), 17), end
    )
    stream(server, metadata(0, rank=0, job="b"), summary("w", pill()), end)
    for job in ("a", "b"):
        assert server.session(job).run(0).node_op_type("w") == "Variable"


def test_a_stream_that_ends_in_the_middle_of_a_tensor_says_so(server):
    first, _ = tensor_events(identity("x", np.zeros(100)), max_bytes=500)
    stream(server, metadata(0), identity("whole", [1.0]), first)
    run = server.session().run(0)
    assert [datum.node_name for datum in run.dumped_tensor_data] == ["whole"]
    assert run.error == "The stream ended in the middle of a tensor or a graph."
    assert server.gauges()["pending_chunk_bytes"] == 0
