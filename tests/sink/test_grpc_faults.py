"""Servers that are absent, die, come back, stop or are slow: nobody waits for them, and the books balance."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tensortap.records import KeyTable
from tensortap.sink.base import RunEnd
from tensortap.sink.grpc import GrpcSink
from tensortap.sink.stream_options import StreamOptions
from tests.patience import patience, patient
from tests.sink.peers import PROJECT, PlainServer, ServerProcess, at_most, free_port
from tests.sink.test_grpc import NODES, record
from tests.store.sample import INFO, START, batch_of, pill

QUICK = StreamOptions(
    connect_timeout_secs=1.0,
    retry_secs=0.2,
    max_retry_secs=0.5,
    stall_timeout_secs=1.0,
    gate_timeout_secs=0.3,
)
STEADY = replace(QUICK, connect_timeout_secs=patient(5), stall_timeout_secs=patient(5))
"""For servers that answer, from which nothing may be lost."""
PER_RUN = 101
TABLE = KeyTable()
SMALL, LARGE = np.ones(1, np.float32), np.ones(200_000, np.float32)
PILLS = batch_of([pill(f"node{number}", after=number) for number in range(PER_RUN - 1)], TABLE)


class Program:
    """Runs that each make 101 records, and how long the slowest of them took to hand them over."""

    def __init__(self, address, options=QUICK):
        self.url, self.options = f"grpc://{address}", options
        self.sinks, self.slowest = [], 0.0

    def run(self, times=1, value=SMALL, pause=0.0):
        for _ in range(times):
            index = len(self.sinks)
            start = time.monotonic()
            sink = GrpcSink(self.url, replace(INFO, index=index, timestamp=START + index), self.options)
            sink.write_batch(PILLS)
            sink.write(record("loss", value))
            sink.finish(RunEnd(NODES))
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.sinks.append(sink)
            time.sleep(pause)

    def run_until(self, condition, seconds=20):
        deadline = time.monotonic() + patient(seconds)
        while not condition() and time.monotonic() < deadline:
            self.run(pause=0.02)
        assert condition()

    @property
    def sender(self):
        return self.sinks[-1].sender

    def written(self):
        return sum(sink.counts.written for sink in self.sinks)

    def dropped(self):
        reasons = {}
        for sink in self.sinks:
            for reason, number in sink.counts.dropped.items():
                reasons[reason] = reasons.get(reason, 0) + number
        return reasons

    def finish(self):
        """Everything has arrived or was given up, and the books balance."""
        assert self.sender.flush(patient(20))
        made = PER_RUN * len(self.sinks)
        assert self.written() + sum(self.dropped().values()) == made
        assert self.sender.counts.written == self.written()
        assert self.sender.counts.dropped == self.dropped()
        assert self.sender.pending_bytes == 0


def test_a_server_that_starts_late_gets_everything(tmp_path):
    program = Program(f"localhost:{free_port()}", StreamOptions(connect_timeout_secs=20))
    program.run(5)
    with ServerProcess(tmp_path, int(program.url.rpartition(":")[2])) as server:
        program.run(5)
        program.finish()
        assert program.written() == server.records() == 10 * PER_RUN
    assert program.slowest < 0.5 * patience()


def test_an_absent_server_is_tried_again_from_time_to_time(tmp_path, caplog):
    program = Program(f"localhost:{free_port()}")
    program.run_until(lambda: program.sinks and program.sender.is_down)
    program.run(50)
    program.finish()
    assert program.dropped() == {"server unreachable": PER_RUN * len(program.sinks)}
    assert "s (connection refused). Training goes on" in caplog.text
    assert caplog.text.count("Training goes on") == 1
    with ServerProcess(tmp_path, int(program.url.rpartition(":")[2])) as server:
        program.run_until(lambda: program.written() > 0)
        program.finish()
        assert server.records() == program.written()
    assert program.slowest < 0.5 * patience()


def test_a_server_that_is_killed_and_comes_back(tmp_path):
    with ServerProcess(tmp_path) as server:
        program = Program(server.address)
        program.run_until(lambda: program.written() > 0)
        server.kill()
        program.run(20, pause=0.02)
        server.start()
        before = program.written()
        program.run_until(lambda: program.written() > before)
        program.finish()
        assert program.written() <= server.records(), "what counts as written is on the server's disk"
        assert set(program.dropped()) <= {"connection lost", "server unreachable"}
        (session,) = server.sessions()
        last = list(session)[-1].open(validate=False)
        assert "loss" in last.nodes(), "the new server got the graph too"
    assert program.slowest < 0.5 * patience()


def test_a_server_that_is_stopped_and_goes_on(tmp_path, caplog):
    """SIGSTOP: connections stay open, nothing is read any more."""
    with ServerProcess(tmp_path) as server:
        program = Program(server.address)
        program.run_until(lambda: program.written() > 0)
        server.stop()
        program.run_until(lambda: program.sender.is_down)
        assert "has taken nothing for 1 s" in caplog.text or "has not answered for 1 s" in caplog.text
        program.run(20)
        with at_most(5):
            assert program.sender.flush(4)
        server.go_on()
        before = program.written()
        program.run_until(lambda: program.written() > before)
        program.finish()
        assert program.written() <= server.records()
    assert program.slowest < 0.5 * patience()


def test_a_slow_server_costs_records_but_no_time_and_no_memory(tmp_path, caplog):
    """Back-pressure: the queue is bounded in bytes, what comes on top is dropped and counted."""
    with ServerProcess(tmp_path, delay=0.02) as server:
        program = Program(server.address, replace(QUICK, max_queue_bytes=2 << 20))
        peak = 0
        for _ in range(100):
            program.run(value=LARGE)
            peak = max(peak, program.sender.pending_bytes)
        program.finish()
        assert set(program.dropped()) == {"queue full"}
        assert peak <= 3 << 20
        assert "is too slow: records are dropped and counted" in caplog.text
        assert server.records() == program.written() > 0
    assert program.slowest < 0.5 * patience()


def test_a_full_queue_may_hold_training_up_where_that_is_wanted(tmp_path):
    with ServerProcess(tmp_path, delay=0.01) as server:
        program = Program(server.address, replace(STEADY, max_queue_bytes=1 << 20, max_wait_secs=patient(30)))
        program.run(20, value=LARGE)
        program.finish()
        assert program.dropped() == {}
        assert server.records() == program.written()


def test_a_run_with_gates_waits_for_a_silent_server_once():
    with PlainServer() as server:
        server.reads.clear()
        with at_most(2):
            for index in range(50):
                sink = GrpcSink(server.url, replace(INFO, index=index), QUICK)
                assert sink.open_gates() == frozenset()
                sink.finish(RunEnd())
        server.reads.set()


def test_runs_of_many_threads_are_all_accounted_for(tmp_path):
    with ServerProcess(tmp_path) as server:
        programs = [Program(server.address, STEADY) for _ in range(8)]
        threads = [threading.Thread(target=program.run, args=(10,)) for program in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert programs[0].sender.flush(patient(30))
        assert sum(program.written() for program in programs) == server.records() == 80 * PER_RUN


def test_somebody_who_listens_and_is_no_debug_server_is_said_to(caplog):
    with socket.create_server(("localhost", 0)) as mute:
        program = Program(f"localhost:{mute.getsockname()[1]}", StreamOptions(connect_timeout_secs=0.5))
        program.run_until(lambda: program.sinks and program.sender.is_down)
        program.finish()
    assert (
        "something listens there, but it hangs, is no debug server, or only one side speaks TLS"
        in caplog.text
    )


WAITED = """
import sys, time
from tests.sink.test_grpc_faults import Program, StreamOptions
programs = [Program(each, StreamOptions(connect_timeout_secs=60, flush_secs=2)) for each in sys.argv[1:]]
for number, program in enumerate(programs):
    program.run(1)
    if not number:
        program.sender.flush_last(0.1)
print(time.monotonic())
"""


def test_the_end_of_the_program_waits_once_for_all_servers_and_not_again_for_what_a_session_waited_for():
    program = [sys.executable, "-c", WAITED, *(f"localhost:{free_port()}" for _ in range(3))]
    done = subprocess.run(program, cwd=PROJECT, capture_output=True, text=True, timeout=patient(60))
    took = time.monotonic() - float(done.stdout)
    assert done.stderr.count("program ended before they were sent") == 3, done.stderr
    assert 1.8 < took < 3.8 * patience()  # and not 4 or 6


ENDING = """
import logging, sys, time
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from tests.sink.test_grpc_faults import Program, StreamOptions
program = Program(sys.argv[1], StreamOptions(flush_secs=1.0))
program.run(10)
print("ends", flush=True)
"""


@pytest.mark.parametrize("fate", ["absent", "stopped", "well"])
def test_the_end_of_the_program_does_not_hang_and_says_what_became_of_the_records(tmp_path, fate):
    port = free_port()
    server = None if fate == "absent" else ServerProcess(tmp_path, port)
    try:
        if fate == "stopped":
            server.stop()
        program = [sys.executable, "-c", ENDING, f"localhost:{port}"]
        with at_most(15):
            done = subprocess.run(program, cwd=PROJECT, capture_output=True, text=True, timeout=patient(60))
        assert done.returncode == 0, done.stderr
        *_, ends, last = done.stdout.splitlines()
        assert ends == "ends"
        if fate == "well":
            assert last == f"10 runs for the debug server localhost:{port}: 1,010 records arrived."
            assert server.records() == 1010
        else:
            assert last == (
                f"10 runs for the debug server localhost:{port}: 0 records arrived; 1,010 records dropped "
                "(1,010 program ended before they were sent)."
            )
    finally:
        if server is not None:
            server.__exit__()
