"""TensorFlow's own debugger opens the export of a PyTorch run, and agrees with our reader on every query (Y)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import tensortap as tt
from tensortap.commands import main
from tensortap.reader import DebugDumpDir, SessionDir
from tests.reader.answers import answers
from tests.reader.test_tensorflow_peer import differences, peer, plain
from tests.reader.test_tensorflow_peer import pytestmark as pytestmark
from tests.torch_engine.zoo import ZOO


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The second step of a small transformer, every tensor of it: (packed run, exported directory)."""
    folder = tmp_path_factory.mktemp("export")
    case = ZOO["transformer_explicit"]()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    with tt.MonitoredSession(session, hooks=[tt.DumpingDebugHook(folder / "dumps")]) as monitored:
        for run in range(2):
            monitored.run("loss", case.batch(run))
    assert (
        main(["export", str(folder / "dumps"), "--run", "1", "--to", "tfdbg", "-o", str(folder / "tfdbg")])
        == 0
    )
    return SessionDir(folder / "dumps").run(1), folder / "tfdbg"


def test_tensorflows_reader_agrees_on_every_query(exported):
    packed, directory = exported
    (theirs,) = peer("query", directory).values()
    ours = plain(answers(DebugDumpDir(directory)))
    ours["unknown"][-1] = theirs["unknown"][-1]  # we keep source lines, which TensorFlow does not look for
    assert list(differences(ours, theirs)) == []
    assert packed.size == DebugDumpDir(directory).size > 300
    for datum in packed.dumped_tensor_data[:50]:
        (value,) = DebugDumpDir(directory, validate=False).get_tensors(
            datum.node_name, datum.output_slot, datum.debug_op
        )
        assert value.tobytes() == datum.get_tensor().tobytes()


def test_the_offline_analyzer_opens_it(exported, tmp_path):
    packed, directory = exported
    node = next(
        d.node_name for d in packed.dumped_tensor_data if packed.node_op_type(d.node_name) == "aten::addmm"
    )
    program = [sys.executable, "-m", "tensorflow.python.debug.cli.offline_analyzer", "--ui_type=readline"]
    done = subprocess.run(
        [*program, f"--dump_dir={directory}"],
        input=f"lt\nni -a -d {node}\npt {node}:0 -s\nexit\n",
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{packed.size} dumped tensor(s)" in done.stdout
    assert "Op: aten::addmm" in done.stdout
