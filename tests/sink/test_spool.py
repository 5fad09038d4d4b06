"""Runs for a server that is away wait on disk, and reach it when it is back, from this program or the next."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tensortap.server import DebugServer
from tensortap.sink.stream.spool import Spool, SpoolFull
from tensortap.sink.stream_options import StreamOptions
from tests.patience import patience, patient
from tests.sink.peers import PROJECT, PlainServer, ServerProcess, at_most, free_port
from tests.sink.test_grpc_faults import PER_RUN, QUICK, Program

SPOOLED = "spooled to be delivered later"


@pytest.fixture
def options(tmp_path):
    return replace(QUICK, connect_timeout_secs=0.3, spool_dir=str(tmp_path / "spool"))


def test_runs_are_delivered_when_the_server_is_back(tmp_path, options):
    program = Program(f"localhost:{free_port()}", options)
    program.run(3)
    program.run_until(lambda: program.sender.is_down)
    program.run(3)
    assert program.sender.flush(patient(10))
    spooled = len(program.sinks)
    assert program.dropped() == {SPOOLED: PER_RUN * spooled}
    with ServerProcess(tmp_path / "root", int(program.url.rpartition(":")[2])) as server:
        program.run_until(lambda: program.written() > 0)
        program.run_until(lambda: program.sender.delivered_runs)
        program.finish()
        assert program.sender.spool.files() == []
        assert server.records() == PER_RUN * len(program.sinks), "every run, however it got there"
        (session,) = server.sessions()
        assert sorted(ref.index for ref in session) == list(range(len(program.sinks)))
        assert all("loss" in ref.open(validate=False).nodes() for ref in session), "with their graphs"
    assert program.slowest < 0.5 * patience()


def test_a_plain_server_gets_them_too(options):
    with PlainServer() as server:
        server.reads.clear()
        program = Program(server.url.removeprefix("grpc://"), options)
        program.run(3)
        assert program.sender.flush(patient(10))
        assert program.dropped() == {SPOOLED: 3 * PER_RUN}
        server.reads.set()
        program.run_until(lambda: program.sender.delivered_runs == 3)
        program.finish()
        assert len(server.records) == PER_RUN * len(program.sinks)


FIRST = """
import sys
from tests.sink.test_grpc_faults import Program, StreamOptions
program = Program(sys.argv[1], StreamOptions(connect_timeout_secs=30, flush_secs=0.5, spool_dir=sys.argv[2]))
program.run(4)
"""


def test_the_next_program_delivers_what_the_first_could_not(tmp_path):
    port = free_port()
    first = [sys.executable, "-c", FIRST, f"localhost:{port}", str(tmp_path / "spool")]
    with at_most(15):
        done = subprocess.run(first, cwd=PROJECT, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 0
    assert f"; 404 records {SPOOLED}." in done.stderr
    with DebugServer(tmp_path / "root", port=port, http_port=None) as server:
        program = Program(f"localhost:{port}", StreamOptions(spool_dir=str(tmp_path / "spool")))
        program.run_until(lambda: program.sinks and program.sender.delivered_runs == 4)
        program.finish()
        assert server.statistics.counts()["records"] == PER_RUN * (4 + len(program.sinks))


def test_a_spool_that_is_full_keeps_no_halves(options, caplog):
    program = Program(f"localhost:{free_port()}", replace(options, spool_max_bytes=60_000))
    program.run(5)
    program.sender.flush(patient(10))
    dropped = program.dropped()
    assert sum(dropped.values()) == 5 * PER_RUN
    assert set(dropped) == {SPOOLED, "spool failed or full"}
    assert len(program.sender.spool.files()) == dropped[SPOOLED] // PER_RUN
    assert sum(path.stat().st_size for path in program.sender.spool.files()) <= 60_000
    assert caplog.text.count("cannot be spooled any more") == 1


def test_files_are_bounded_locked_and_cut_at_the_last_whole_message(tmp_path):
    spool = Spool(tmp_path, "host:1", 100)
    spool.write("a", [b"x" * 10, b"y" * 20])
    with pytest.raises(SpoolFull, match="may hold 100 bytes"):
        spool.write("b", [b"z" * 90])
    (path,) = spool.files()
    with spool.claim(path) as mine, spool.claim(path) as other:
        assert other is None
        assert list(mine) == [b"x" * 10, b"y" * 20]
    path.write_bytes(path.read_bytes()[:-1])
    with spool.claim(path) as messages:
        assert list(messages) == [b"x" * 10]
    path.unlink()
    with spool.claim(path) as messages:
        assert messages is None
    assert spool.files() == []
