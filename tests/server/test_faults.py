"""Real processes that are killed, many at once, and a server that is: what was received is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import grpc
import pytest

from tensortap.reader import SessionDir
from tensortap.server import DebugServer
from tests.patience import patient
from tests.server.tools import (
    PROJECT,
    ServeProcess,
    events,
    eventually,
    get,
    identity,
    metadata,
    open_stream,
    pill,
    pill_batch,
    stream,
)


def client(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
    command = [sys.executable, "-m", "tests.server.client", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, cwd=PROJECT, **options)


@pytest.fixture
def server(tmp_path):
    with DebugServer(tmp_path / "root") as running:
        yield running


def test_a_client_killed_in_the_middle_of_a_tensor(server):
    process = client(server.address, 0, "half", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "half\n"
    eventually(lambda: server.gauges()["pending_chunk_bytes"] > 8_000_000)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    eventually(lambda: server.gauges()["active_streams"] == 0)
    assert server.gauges()["pending_chunk_bytes"] == 0
    run = server.session("killed").run(0)
    assert [datum.node_name for datum in run.dumped_tensor_data] == ["small"]
    assert run.error == "The stream broke off before the run ended."
    assert server.statistics.counts()["broken"] == 1
    stream(server, metadata(1, rank=0, job="killed"), identity("next", [1.0]))
    assert len(server.session("killed")) == 2


def test_fifty_clients_at_once(server):
    """Each on a stream of its own; all of them are in the middle of a run at the same time; nothing is lost."""
    everybody = threading.Barrier(50)
    failures = []

    def one(rank):
        def messages():
            yield from events(metadata(0, rank=rank, job="crowd"))
            everybody.wait(patient(60))
            names = [f"layer/{place}" for place in range(200)]
            yield from events(
                pill_batch(names, [pill(mean=rank)] * 200, rank), identity("x", [float(rank)], rank)
            )

        try:
            list(open_stream(server, messages()))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(120))
    assert failures == []
    session = server.session("crowd")
    assert session.tasks() == list(range(50))
    assert {ref.open().size for ref in session.runs} == {201}
    for rank in (0, 17, 49):
        run = session.run(0, task=rank)
        assert run.get_tensors("x", 0, "DebugIdentity")[0].tolist() == [rank]
    assert server.statistics.counts()["records"] == 50 * 201


def test_several_processes_lose_nothing(tmp_path):
    server = ServeProcess(tmp_path / "root", "--port", "0")
    processes = [client(server.address, rank, 20, 500) for rank in range(3)]
    assert [process.wait(patient(120)) for process in processes] == [0, 0, 0]
    now = get(server, "/api/server")
    assert now["counts"]["records"] == 3 * 20 * 500
    assert now["now"]["resident_memory_bytes"] < 500 << 20
    assert "received 30000 records in 60 runs" in server.close()
    session = SessionDir(tmp_path / "root" / "load")
    assert session.tasks() == [0, 1, 2]
    assert len(session.history("layer/499:0")) == 60


def test_a_server_killed_and_started_again(tmp_path):
    """What was received is readable, also of the run that was cut off; the same root takes more."""
    root = tmp_path / "root"
    server = ServeProcess(root, "--port", "0")
    stream(server, metadata(0), identity("complete", [1.0]))
    held = threading.Event()

    def messages():
        yield from events(metadata(1), identity("received", [2.0]))
        held.wait(patient(60))

    call = open_stream(server, messages())
    next(call)
    eventually(lambda: get(server, "/api/server")["counts"]["records"] == 2)
    server.kill()
    held.set()
    with pytest.raises(grpc.RpcError):
        list(call)
    session = SessionDir(root / "default")
    assert [datum.node_name for datum in session.run(0).dumped_tensor_data] == ["complete"]
    assert [datum.node_name for datum in session.run(1).dumped_tensor_data] == ["received"]
    assert "has not finished" in session.run(1).notices[0]
    again = ServeProcess(root, "--port", "0")
    stream(again, metadata(2), identity("more", [3.0]))
    assert [run["run"] for run in get(again, "/api/jobs/default/runs")["runs"]] == [0, 1, 2]
    assert "received 1 records" in again.close()


def test_garbage_on_the_port(server):
    """Bytes that are no HTTP/2, on a raw socket."""
    import socket

    host, _, port = server.address.rpartition(":")
    for content in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(100_000), b""):
        with socket.create_connection((host, int(port)), timeout=patient(10)) as raw:
            try:
                raw.sendall(content)
            except OSError:
                pass  # it hung up on us
    stream(server, metadata(0), identity("good", [1.0]))
    assert len(server.session()) == 1


def test_serve_names_every_job_and_ends_when_told_twice(tmp_path):
    """`timeout` and supervisors send a signal to the process and to its group: two at the same moment."""
    for _ in range(3):
        server = ServeProcess(tmp_path, "--port", "0")
        stream(server, metadata(0, rank=0, job="gpt"), identity("fc", [1.0]))
        assert server.process.stderr.readline() == f"job gpt: tensortap health {tmp_path}/gpt --follow\n"
        for _ in range(5):
            server.process.send_signal(signal.SIGTERM)
        server.process.wait(patient(30))
        assert server.close() == "received 1 records in 1 runs\n"
