"""A training script of TensorFlow 1 runs with our hooks by changing its import lines."""

from __future__ import annotations

from pathlib import Path

from tensortap.reader.session_dir import SessionDir

SCRIPT = Path(__file__).parents[2] / "examples" / "tensorflow_monitored.py"
OURS = (
    "from tensortap import DumpingDebugHook, LoggingTensorHook, NanTensorHook, ProfilerHook, StopAtStepHook\n"
)
THEIRS = """\
from tensorflow.compat.v1.train import LoggingTensorHook, NanTensorHook, ProfilerHook, StopAtStepHook
from tensorflow.python.debug.wrappers.hooks import DumpingDebugHook
"""


def trained(source, directory):
    module = {"__name__": "script"}
    exec(compile(source, str(SCRIPT), "exec"), module)
    directory.mkdir()
    return module["main"](str(directory))


def test_only_import_lines_differ(tf, v1, tmp_path):
    source = SCRIPT.read_text()
    assert source.count(OURS) == 1
    # TensorFlow's own way takes seconds of this: values of every tensor, each in a file.
    theirs = source.replace(OURS, THEIRS).replace("last_step=40", "last_step=3")
    with_ours, with_theirs = trained(source, tmp_path / "ours"), trained(theirs, tmp_path / "theirs")
    assert with_ours[:3] == with_theirs
    assert len(with_ours) == 40
    assert with_ours[-1] < 0.5 * with_ours[0]
    assert v1.train.latest_checkpoint(str(tmp_path / "ours")).endswith("model.ckpt-40")
    assert len(SessionDir(tmp_path / "ours" / "dumps").runs) == 40
    assert list((tmp_path / "ours").glob("timeline-*.json"))
