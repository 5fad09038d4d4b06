"""A process that was killed at any moment of its first run leaves a directory that every command has a word for."""

from __future__ import annotations

import os
import shutil

import pytest

from tensortap.commands import main
from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.records import Node
from tensortap.store import SessionStore
from tensortap.store.packed import PackedRun
from tests.store.sample import CPU, INFO, pill, record

COMMANDS = (
    ["why"],
    ["health"],
    ["ls"],
    ["ls", "-r", "3"],
    ["show", "fc:0"],
    ["node", "fc"],
    ["inputs", "fc"],
    ["outputs", "fc", "-R"],
    ["source"],
    ["history", "fc:0"],
    ["find"],
    ["find", "max > 1"],
    ["eval", "`fc:0`"],
    ["ranks"],
    ["profile"],
    ["doctor"],
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A session of one small run."""
    root = tmp_path_factory.mktemp("whole") / "dumps"
    with SessionStore(root) as store, store.new_run(INFO) as run:
        run.write(pill("fc"))
        run.write(record("fc", [[1.0] * 200], after=1))
        run.finish({CPU: [Node("fc", "aten::addmm", device=CPU)]}, {})
    return root


def every_command_has_a_word(directory, tmp_path, capsys):
    commands = [[name, str(directory), *rest] for name, *rest in COMMANDS]
    commands.append(["diff", str(directory), str(directory)])
    commands.append(["export", str(directory), "-o", str(tmp_path / "out.npz"), "--force"])
    for command in commands:
        code = main(
            command
        )  # anything but a TensortapError, OSError, ValueError or LookupError comes through
        out, err = capsys.readouterr()
        assert code in (0, 1, 2), command
        assert out.strip() or err.strip(), command
        assert "Traceback" not in err, command


def bare(root, *, marker):
    run = root / "run_1700000000000000_0"
    run.mkdir(parents=True)
    if marker:
        (root / "tensortap.json").write_text('{"format": "tensortap-session", "version": 3}\n')
    return run


@pytest.mark.parametrize("marker", [True, False])
@pytest.mark.parametrize("temporary", [True, False])
def test_before_the_run_is_described(tmp_path, capsys, marker, temporary):
    run = bare(tmp_path / "dumps", marker=marker)
    if temporary:
        (run / ".run.json.4711.0badcafe").write_bytes(b"{")
    dump = DebugDumpDir(run)
    assert isinstance(dump.source, PackedRun)
    assert dump.notices == [
        "The run holds nothing yet: its process was stopped in its first moments, or has just begun it."
    ]
    assert dump.core_metadata.global_step == -1
    for directory in (tmp_path / "dumps", run):
        every_command_has_a_word(directory, tmp_path, capsys)


def test_before_there_is_a_run(tmp_path, capsys):
    root = tmp_path / "dumps"
    SessionStore(root).close()
    every_command_has_a_word(root, tmp_path, capsys)
    (root / "tensortap.json").write_bytes(b"")
    every_command_has_a_word(root, tmp_path, capsys)


def test_a_killed_run_beside_a_good_one(whole, tmp_path, capsys):
    root = tmp_path / "dumps"
    shutil.copytree(whole, root)
    (root / "run_1800000000000000_4").mkdir()
    assert main(["why", str(root)]) == 0
    assert "first moments" in "".join(capsys.readouterr())
    assert main(["node", str(root), "fc", "-r", "3"]) in (0, 2)
    every_command_has_a_word(root, tmp_path, capsys)


def test_a_tfdbg_directory_is_still_one(tmp_path, capsys):
    run = bare(tmp_path / "dumps", marker=False)
    (run / "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0").mkdir()
    assert not isinstance(DebugDumpDir(run).source, PackedRun)
    for directory in (tmp_path / "dumps", run):
        every_command_has_a_word(directory, tmp_path, capsys)


@pytest.mark.parametrize("suffix", ["run.json", ".index", ".data", "tensortap.json", ".pb"])
def test_a_file_that_was_cut_at_any_byte(whole, tmp_path, capsys, suffix):
    root = tmp_path / "dumps"
    shutil.copytree(whole, root)
    (path,) = [each for each in root.rglob("*") if each.is_file() and each.name.endswith(suffix)]
    size = path.stat().st_size
    for length in reversed(range(size)):
        os.truncate(path, length)
        session = SessionDir(root)
        dump = session.run(-1, validate=False)
        for datum in dump.dumped_tensor_data:
            datum.get_tensor()
        if suffix == ".data" or (suffix == "run.json" and length < size - 1):  # its last byte ends the line
            assert dump.notices, length
        if length in (0, 1, 20, size // 2, size - 1):
            every_command_has_a_word(root, tmp_path, capsys)
