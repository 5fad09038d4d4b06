"""Real faults in real processes: training is not harmed, and what was written can be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.debug.steps import runs, tensors
from tests.patience import patient

PRELUDE = """
import os, signal, sys, time, threading, json, resource
import numpy as np, torch, tensortap as tt
from tensortap.debug.dumping import DumpingDebugWrapperSession
from tensortap.debug.hooks import DumpingDebugHook
from tensortap.sink.retention import Retention
from tensortap.watch.options import WatchOptions
root = sys.argv[1]
torch.manual_seed(0)
"""


def execute(root, program, check=True, timeout=120):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(program), str(root)],
        capture_output=True,
        text=True,
        timeout=patient(timeout),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


def test_the_end_of_the_program_waits_for_the_last_records(tmp_path):
    execute(
        tmp_path / "root",
        """
        session = DumpingDebugWrapperSession(tt.torch.Session(lambda x: {"y": x * 2}), root)
        for _ in range(5):
            session.run("y", {"x": torch.ones(1_000_000)})
        """,
    )
    dumps = runs(tmp_path / "root")
    assert [dump.size for dump in dumps] == [2] * 5
    assert all(dump.counts["written"] == 2 for dump in dumps)


def test_an_error_that_ends_the_program_waits_too(tmp_path):
    done = execute(
        tmp_path / "root",
        """
        def step(x):
            y = x * 2
            raise LookupError("the user's own")
        session = tt.MonitoredSession(tt.torch.Session(step), hooks=[DumpingDebugHook(root)])
        session.run(None, {"x": torch.ones(1_000_000)})
        """,
        check=False,
    )
    assert done.returncode == 1
    assert "LookupError: the user's own" in done.stderr
    (dump,) = runs(tmp_path / "root")
    assert "mul:0:DebugIdentity" in tensors(dump)
    assert "the user's own" in dump.error


def test_a_process_that_is_killed_in_a_long_op_leaves_what_came_before(tmp_path):
    done = execute(
        tmp_path / "root",
        """
        def step(x):
            y = x * 2
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
        DumpingDebugWrapperSession(tt.torch.Session(step), root).run(None, {"x": torch.ones(3)})
        """,
        check=False,
    )
    assert done.returncode == -9
    (dump,) = runs(tmp_path / "root")
    assert tensors(dump) == {"x:0:DebugIdentity", "mul:0:DebugIdentity"}


LIMITED = """
def train(session):
    return [float(session.run("y", {"x": torch.full((30_000,), float(n))})) for n in range(20)]
def step(x):
    return {"y": (x * 2).sum()}
plain = train(tt.torch.Session(step))
with DumpingDebugWrapperSession(tt.torch.Session(step), root) as session:
    watched = train(session)
print(json.dumps(plain == watched))
"""


def test_files_that_may_not_grow_harm_nobody(tmp_path):
    """A limit of 200,000 bytes per file: one value of 120,000 fits, the second one does not."""
    done = execute(
        tmp_path / "root", "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n" + LIMITED
    )
    assert json.loads(done.stdout) is True
    assert done.stderr.count("training goes on") == 1
    for dump in runs(tmp_path / "root"):
        assert dump.counts["dropped: write failed"] == 1
        assert dump.counts["written"] == dump.size == 2


def test_a_full_disk_harms_nobody(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small disk needs privileges")
    try:
        done = execute(disk / "root", LIMITED)
        assert json.loads(done.stdout) is True
        assert 1 <= done.stderr.count("No space left on device") <= 3
        written = sum(dump.size for dump in runs(disk / "root"))
        assert 3 <= written < 60
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_root_that_disappears_harms_nobody(tmp_path):
    done = execute(
        tmp_path / "root",
        """
        import shutil
        session = DumpingDebugWrapperSession(tt.torch.Session(lambda x: {"y": x * 2}), root)
        results = []
        for n in range(6):
            if n == 3:
                session.flush()
                shutil.rmtree(root)
                open(root, "w").close()
            results.append(float(session.run("y", {"x": torch.tensor(float(n))})))
        session.flush()
        print(results)
        """,
    )
    assert json.loads(done.stdout) == [0, 2, 4, 6, 8, 10]


def test_a_program_that_forks_between_and_within_runs(tmp_path):
    execute(
        tmp_path / "root",
        """
        def step(x):
            y = x * 2
            child = os.fork()
            if child == 0:
                z = y + 1
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            return {"y": y + 2}
        with DumpingDebugWrapperSession(tt.torch.Session(step), root) as session:
            for _ in range(3):
                session.run("y", {"x": torch.ones(3)})
        """,
    )
    dumps = runs(tmp_path / "root")
    assert len(dumps) == 3
    for dump in dumps:
        assert dump.error is None
        assert dump.counts["written"] == dump.size == 3


def test_two_thousand_small_runs_take_no_more_memory_than_two_hundred(tmp_path):
    done = execute(
        tmp_path / "root",
        """
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        model = torch.nn.Linear(4, 4)
        session = tt.torch.Session(lambda x: {"y": model(x).relu()}, modules={"model": model})
        wrapper = DumpingDebugWrapperSession(session, root, lambda *_: WatchOptions("DebugNumericSummary"),
                                             retention=Retention(last=20))
        started = time.time()
        for number in range(2000):
            wrapper.run("y", {"x": torch.ones(2, 4)})
            if number == 400:
                wrapper.flush(); early = resident()
        wrapper.close()
        for thread in threading.enumerate():
            if thread.name == "tensortap-presence":  # it has heard, and ends when it is its turn
                thread.join(60)
        print(json.dumps([early, resident(), time.time() - started, threading.active_count()]))
        """,
    )
    early, late, seconds, threads = json.loads(done.stdout)
    assert late - early < 12 << 20, f"grew by {(late - early) >> 20} MiB"
    assert seconds < patient(60)
    assert threads <= 2
    assert len(runs(tmp_path / "root")) == 20
