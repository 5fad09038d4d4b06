"""How the test run itself behaves: limits grow with the load, and what a test has started ends with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.patience import finished, patience, patient, wait_until

FAILING = """
import subprocess, sys
from tensortap.records import Record, RunInfo
from tensortap.sink.grpc import GrpcSink


def test_that_fails(tmp_path):
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    started = subprocess.Popen([sys.executable, "-c", child + "print(1, flush=True); time.sleep(600)"], stdout=-1)
    started.stdout.readline()
    with open(f"/proc/{started.pid}/task/{started.pid}/children") as children, open("processes", "w") as file:
        file.write(f"{started.pid} {children.read()}")
    assert False


def test_with_a_server_that_is_not_there():
    sink = GrpcSink("grpc://localhost:1", RunInfo(0, 0, 17))
    sink.write(Record("x", 0, "DebugNanCount", "/device:CPU:0", 18, "int64", (1,), bytes(8)))
"""


def test_nothing_that_a_failed_test_started_stays_and_no_server_is_reported_after_the_last_dot(tmp_path):
    (tmp_path / "test_it.py").write_text(FAILING)
    project = str(Path(__file__).parents[1])
    paths = os.pathsep.join([project, os.environ.get("PYTHONPATH", "")])
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-q",
        "test_it.py",
    ]
    done = finished(pytest, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths})
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    processes = (tmp_path / "processes").read_text().split()
    assert len(processes) == 2
    wait_until(lambda: not any(os.path.exists(f"/proc/{each}") for each in processes))
    assert "debug server" not in done.stderr + done.stdout.partition("short test summary")[2]


def test_a_limit_grows_with_the_load_and_on_demand(monkeypatch):
    assert patient(10) >= 30
    before = patience()
    monkeypatch.setenv("TENSORTAP_PATIENCE", "100")
    assert patience() > before
