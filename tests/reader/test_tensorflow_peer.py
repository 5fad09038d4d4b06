"""TensorFlow's own reader and ours agree, on its dumps and on our exports (E1–E32, Y).

TensorFlow runs in processes of its own; nothing here imports it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensortap as tt
from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.store import export_tfdbg
from tests.debug.steps import X, linear_session
from tests.reader.answers import answers
from tests.store.sample import CPU, records, write_sample

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="compares with TensorFlow, which is not installed"
)
PROJECT = Path(__file__).parents[2]


def peer(*arguments):
    paths = os.pathsep.join([str(PROJECT), str(PROJECT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    program = [sys.executable, "-m", "tests.reader.tf_peer", *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def plain(result):
    return json.loads(json.dumps(result))


def differences(ours, theirs, path=""):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key), theirs.get(key), f"{path}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{path}[{place}]")
    elif ours != theirs:
        yield f"{path}: ours {str(ours)[:300]} — theirs {str(theirs)[:300]}"


@pytest.fixture(scope="module")
def written_by_tensorflow(tmp_path_factory):
    root = tmp_path_factory.mktemp("tensorflow") / "root"
    return root, peer("make", root)


def test_our_reader_agrees_on_what_tensorflow_wrote(written_by_tensorflow):
    _, theirs = written_by_tensorflow
    assert len(theirs) == 3
    for path, expected in theirs.items():
        assert list(differences(plain(answers(DebugDumpDir(path))), expected)) == []


def test_the_dumps_hold_what_they_should(written_by_tensorflow):
    root, _ = written_by_tensorflow
    session = SessionDir(root)
    full, _, failed = (run.open() for run in session.runs)
    assert len(full.get_tensors("loop/Identity", 0, "DebugIdentity")) == 14
    assert full.get_tensors("bf", 0, "DebugIdentity")[0].dtype.name == "bfloat16"
    assert len(full.debug_watch_keys("uniq")) == 2
    assert full.node_inputs("z", is_control=True) == ["update"]
    # E31: a failed run is as readable as any other
    assert failed.size > 0
    assert failed.loaded_partition_graphs()


def test_tensorflow_agrees_on_our_export(tmp_path):
    packed = DebugDumpDir(write_sample(tmp_path / "root"))
    report = export_tfdbg(packed, tmp_path / "tfdbg")
    assert report.written == len(records())
    (theirs,) = peer("query", tmp_path / "tfdbg").values()
    exported = plain(answers(DebugDumpDir(tmp_path / "tfdbg")))
    # We keep stored source lines, which TensorFlow does not look for.
    exported["unknown"][-1] = "LookupError"
    assert list(differences(exported, theirs)) == []
    ours = plain(answers(packed))
    for layout in (ours, theirs):
        for datum in layout["data"]:
            for only_one_layout_has in ("file", "size", "sizes"):
                datum.pop(only_one_layout_has)
        layout["data"].sort(key=lambda datum: (datum["text"], datum["time"]))
    ours["unknown"][-1] = "LookupError"
    assert list(differences(ours, theirs)) == []


def test_tensorflows_command_line_works_on_our_reader(written_by_tensorflow, tmp_path):
    """E20: it expects frames of four, and its own class for what has no value."""
    root, _ = written_by_tensorflow
    with tt.DumpingDebugWrapperSession(linear_session(), tmp_path / "ours") as session:
        session.run("loss", {"x": X})
    (ours,) = SessionDir(tmp_path / "ours").runs
    unset, info = peer("analyze", SessionDir(root).runs[0].path, ours.path)
    assert "Uninitialized tensor" in unset
    frame = ours.open().node_traceback("model/addmm")[-1]
    assert f"Line:     {frame[1]}" in info
    assert f"Function: {frame[2]}" in info
    assert frame[3]
    assert f'Text:     "{frame[3]}"' in info


def test_the_offline_analyzer_opens_our_export(tmp_path):
    # One device: TensorFlow's analyzer itself fails on a name that two devices have.
    report = export_tfdbg(write_sample(tmp_path / "root", devices=[CPU]), tmp_path / "tfdbg")
    program = [sys.executable, "-m", "tensorflow.python.debug.cli.offline_analyzer", "--ui_type=readline"]
    done = subprocess.run(
        [*program, f"--dump_dir={tmp_path / 'tfdbg'}"],
        input="lt\nni -a -d fc/addmm\npt w:0 -s\nlt -f has_inf_or_nan\nexit\n",
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{report.written} dumped tensor(s)" in done.stdout
    assert "Op: aten::addmm" in done.stdout
    assert f"Device: {CPU}" in done.stdout
    assert "299.5" in done.stdout  # the mean of w
    assert "loss:0" in done.stdout
