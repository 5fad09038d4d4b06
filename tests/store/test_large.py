"""A value larger than comfortable is written from its buffer and mapped when read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

GIGABYTES = 3
PROGRAM = """
import resource, sys
from pathlib import Path
import numpy as np
from tensortap.reader import DebugDumpDir, has_inf_or_nan
from tensortap.records import Record, RunInfo, device_name
from tensortap.store import SessionStore

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

root, count = Path(sys.argv[1]), int(sys.argv[2]) * 1_000_000_000 // 4
if sys.argv[3] == "write":
    source = np.zeros(count, np.float32)
    source[:] = 1  # every page is resident before the measurement starts
    source[-1] = np.inf
    source[:3] = 7
    before = peak()
    with SessionStore(root / "s") as store, store.new_run(RunInfo(0, 0, 1)) as run:
        data = memoryview(source).cast("B")
        run.write(Record("big", 0, "DebugIdentity", device_name("cpu"), 2, "float32", (count,), data))
        run.finish({}, {})
else:
    before = peak()
    dump = DebugDumpDir(root / "s" / "run_1_0")
    (value,) = dump.get_tensors("big", 0, "DebugIdentity")
    assert value.shape == (count,) and value[0] == 7 and np.isinf(value[-1]) and value[count // 2] == 1
print(before, peak())
"""


@pytest.mark.skipif(
    not os.environ.get("TENSORTAP_SLOW_TESTS"), reason="set TENSORTAP_SLOW_TESTS=1 to run slow tests"
)
def test_three_gigabytes_need_little_memory(tmp_path):
    if shutil.disk_usage(tmp_path).free < 8 << 30:
        pytest.skip("needs 8 GB of free disk")
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 << 30:
        pytest.skip("needs 8 GB of free memory")
    for each in ("write", "read"):
        arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), str(GIGABYTES), each]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        before, after = map(int, done.stdout.split())
        print(f"{each}: peak {before} MB before, {after} MB after")
        assert after - before < 300
