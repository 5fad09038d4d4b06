"""Files that claim to be enormous: an answer or one line, in little memory and time, and what was cut is said."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest

from tensortap.records import Node
from tensortap.store import SessionStore, export_tfdbg
from tests.store.sample import CPU, INFO, pill, record

HUGE = 20 << 30

# One process for all commands, which may not have more memory than a small machine.
COMMANDS = """
import json, resource, sys, contextlib, io
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from tensortap.commands import main
for command in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(command)
    print(json.dumps([command[0], code, said.getvalue()[-2000:]]))
"""


def answers(*commands):
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([list(map(str, each)) for each in commands])],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all("Traceback" not in said for _, _, said in found)
    return {name: (code, said) for name, code, said in found}


def session(root):
    with SessionStore(root) as store, store.new_run(INFO) as run:
        run.write(pill("fc"))
        run.write(record("fc", [[1.0] * 200], after=1))
        run.finish({CPU: [Node("fc", "aten::addmm", device=CPU)]}, {})
    return run.path


@pytest.mark.parametrize("suffix", [".index", ".data", ".pb", "run.json", "tensortap.json", ".sqlite3"])
def test_a_sparse_file_of_20_gigabytes(tmp_path, suffix):
    root = tmp_path / "dumps"
    session(root)
    (path,) = [each for each in root.rglob("*") if each.is_file() and each.name.endswith(suffix)]
    os.truncate(path, HUGE)
    said = answers(
        ["ls", root, "-r", "3"],
        ["show", root, "fc:0"],
        ["node", root, "fc"],
        ["health", root],
        ["doctor", root],
        ["why", root],
    )
    assert {code for code, _ in said.values()} <= {0, 1, 2}
    if suffix == ".index":
        assert "bytes were not read: there is no record in the first 32 MB" in said["ls"][1]
        assert said["show"][0] == 0  # what was written before is intact
        assert said["doctor"][0] == 1
    if suffix == ".pb":
        assert (
            "larger than anything that is stored there" in said["doctor"][1] + said["node"][1] + said["ls"][1]
        )


def test_a_tfdbg_directory_of_enormous_events(tmp_path):
    out = tmp_path / "tfdbg"
    export_tfdbg(session(tmp_path / "dumps"), out)
    for path in [each for each in out.rglob("*") if each.is_file() and "DebugIdentity" in each.name]:
        os.truncate(path, HUGE)
    code, said = answers(["show", out, "fc:0"])["show"]
    assert code == 2
    assert f"{HUGE} bytes long; what belongs there has at most" in said


def test_traces_without_end(tmp_path):
    packed = tmp_path / "packed" / "timeline-1.json.gz"
    packed.parent.mkdir()
    member = gzip.compress(bytes(64 << 20), 1)
    packed.write_bytes(member * 200)  # 13 GB of text in a few megabytes
    sparse = tmp_path / "sparse" / "timeline-1.json"
    sparse.parent.mkdir()
    sparse.touch()
    os.truncate(sparse, HUGE)
    for place, words in ((packed, "unpacks to more than 512 MB"), (sparse, "has more than 512 MB")):
        (place.parent / "timeline-2.json").write_text('{"traceEvents": []}')
        said = answers(["profile", place], ["trace", "merge", place.parent, "-o", tmp_path / "merged.json"])
        for code, text in said.values():
            assert code == 2, text
            assert words in text
            assert place.name in text
