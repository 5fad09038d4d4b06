"""Training that dumps, killed with SIGKILL at fifty random moments: what was complete is there, the rest is said."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tensortap.reader import DebugDumpDir, SessionDir

TIMES = 50


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    root = tmp_path_factory.mktemp("killed")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.debug.killed", str(root), "7", str(TIMES)], check=True
    )
    return root


def test_every_completed_record_is_readable_and_every_torn_run_is_reported(killed):
    runs = unfinished = flushed_runs = 0
    for place in killed.iterdir():
        if not (place / "dumps").exists():
            continue  # killed before its first run
        flushed = [int(line) for line in (place / "flushed").read_text().split()]
        session = SessionDir(place / "dumps")
        for ref in session:
            dump = DebugDumpDir(ref.path, validate=False)
            runs += 1
            if dump.notices:
                unfinished += 1
            for datum in dump.dumped_tensor_data:
                value = datum.get_tensor()
                if datum.watch_key == "x:0:DebugIdentity":
                    np.testing.assert_array_equal(value, np.full((32, 64), float(ref.index), np.float32))
                assert np.asarray(value).size
        for number in flushed:
            flushed_runs += 1
            dump = session.run(number)
            assert dump.notices == []
            assert dump.counts["written"] == dump.size > 50
            assert dump.loaded_partition_graphs()
    assert flushed_runs >= TIMES // 2
    assert runs > flushed_runs
    assert unfinished > 0, "no kill hit a run in the middle: the test has lost its subject"
