"""Checkpoints on disk: names, retention, and what a crash at any moment leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tensortap.errors import AbortedError, CheckpointError
from tensortap.hooks import files
from tensortap.hooks.saver import Saver, latest_checkpoint

from .counter_session import CounterSession


def at_step(step: int) -> CounterSession:
    session = CounterSession()
    session.global_step = step
    return session


def save_steps(directory: Path, *steps: int, saver: Saver | None = None) -> Saver:
    saver = saver or Saver()
    for step in steps:
        saver.save(at_step(step), directory / "model.ckpt", step)
    return saver


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_save_and_restore(tmp_path: Path) -> None:
    path = Saver().save(at_step(7), tmp_path / "new" / "model.ckpt", 7)
    assert path == tmp_path / "new" / "model.ckpt-7"
    assert names(path.parent) == ["checkpoints.json", "model.ckpt-7"]
    session = CounterSession()
    Saver().restore(session, path)
    assert session.global_step == 7
    assert Saver().latest_checkpoint(path.parent) == latest_checkpoint(path.parent) == path


def test_the_step_may_be_left_out(tmp_path: Path) -> None:
    path = Saver().save(at_step(1), tmp_path / "best")
    assert path == tmp_path / "best"
    assert latest_checkpoint(tmp_path) == path


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    save_steps(tmp_path, *range(8), saver=Saver(max_to_keep=2))
    assert names(tmp_path) == ["checkpoints.json", "model.ckpt-6", "model.ckpt-7"]
    # A new saver, as after a restart, goes on counting.
    save_steps(tmp_path, 8, saver=Saver(max_to_keep=2))
    assert names(tmp_path) == ["checkpoints.json", "model.ckpt-7", "model.ckpt-8"]


@pytest.mark.parametrize("everything", [None, 0])
def test_all_may_be_kept(tmp_path: Path, everything: int | None) -> None:
    save_steps(tmp_path, *range(8), saver=Saver(max_to_keep=everything))
    assert len(names(tmp_path)) == 9


def test_basenames_do_not_push_each_other_out(tmp_path: Path) -> None:
    saver = Saver(max_to_keep=1)
    saver.save(at_step(1), tmp_path / "best", 1)
    save_steps(tmp_path, 2, 3, saver=saver)
    assert names(tmp_path) == ["best-1", "checkpoints.json", "model.ckpt-3"]


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 2, saver=Saver(max_to_keep=2))
    assert names(tmp_path) == ["checkpoints.json", "model.ckpt-1", "model.ckpt-2"]


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="max_to_keep must be positive"):
        Saver(max_to_keep=-1)


class CutShort(CounterSession):
    """Fails in the middle of writing its state."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def save_state(self, path: Path) -> None:
        path.write_text('{"global')
        raise self.error


def test_a_failed_write_leaves_the_last_good_one(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    with pytest.raises(
        CheckpointError, match=r"Cannot save the checkpoint .*model.ckpt-2: .*No space"
    ) as caught:
        Saver().save(CutShort(OSError(28, "No space left on device")), tmp_path / "model.ckpt", 2)
    assert isinstance(caught.value.__cause__, OSError)
    assert names(tmp_path) == ["checkpoints.json", "model.ckpt-1"]
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-1"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AbortedError(None, "gone")])
def test_interrupts_and_preemptions_pass_unchanged(tmp_path: Path, error: BaseException) -> None:
    save_steps(tmp_path, 1)
    with pytest.raises(type(error)):
        Saver().save(CutShort(error), tmp_path / "model.ckpt", 2)
    assert names(tmp_path) == ["checkpoints.json", "model.ckpt-1"]


class Crash(BaseException):
    """The process dies here: nothing after this point is executed."""


@pytest.mark.parametrize("crash_at", range(14))
def test_a_crash_at_any_call_to_the_system_leaves_a_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    save_steps(tmp_path, 1, 2, saver=Saver(max_to_keep=2))
    calls = 0

    def crashing(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > crash_at:
                raise Crash
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in ("replace", "fsync", "open", "unlink"):
            patched.setattr(os, name, crashing(getattr(os, name)))
        patched.setattr(Path, "unlink", crashing(Path.unlink))
        try:
            save_steps(tmp_path, 3, saver=Saver(max_to_keep=2))
            completed = True
        except Crash:
            completed = False
    found = latest_checkpoint(tmp_path)
    assert found is not None
    restored = CounterSession()
    Saver().restore(restored, found)
    assert restored.global_step == (3 if completed else restored.global_step)
    assert restored.global_step in (2, 3)
    # The next writer goes on, and cleans up.
    save_steps(tmp_path, 4, saver=Saver(max_to_keep=2))
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-4"
    assert files.temporary_siblings(tmp_path, "model.ckpt") == []


@pytest.mark.parametrize(
    "content",
    [None, "", '{"version": 1, "check', "[]", '{"checkpoints": [{"name": 3}]}', "\x00\xff"],
)
def test_an_unusable_pointer_is_not_needed(tmp_path: Path, content: str | None) -> None:
    save_steps(tmp_path, 9, 10)
    for step, time in ((9, 1000), (10, 2000)):
        os.utime(tmp_path / f"model.ckpt-{step}", (time, time))
    (tmp_path / "events.out.tfevents.1-2").write_text("no checkpoint")
    (tmp_path / "graph.pbtxt").write_text("no checkpoint")
    (tmp_path / ".model.ckpt-11.tmp").write_text("a crashed writer's")
    pointer = tmp_path / "checkpoints.json"
    pointer.unlink() if content is None else pointer.write_text(content, encoding="latin-1")
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-10"


def test_missing_or_truncated_checkpoints_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_steps(tmp_path, 1, 2, 3)
    (tmp_path / "model.ckpt-3").unlink()
    (tmp_path / "model.ckpt-2").write_text('{"glo')
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-1"
    assert caplog.text.count("missing or incomplete") == 2
    (tmp_path / "model.ckpt-1").unlink()
    assert latest_checkpoint(tmp_path) is None


def test_the_pointer_of_an_earlier_version_is_read_and_replaced(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    (tmp_path / "checkpoints.json").rename(tmp_path / "checkpoint")
    os.utime(tmp_path / "model.ckpt-2", (0, 0))
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-2"
    save_steps(tmp_path, 3)
    assert names(tmp_path) == ["checkpoints.json", "model.ckpt-1", "model.ckpt-2", "model.ckpt-3"]


def test_what_tensorflow_has_in_the_same_directory_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {
        "checkpoint": 'model_checkpoint_path: "model.ckpt-9"\n',
        "model.ckpt-9.index": "an index",
        "model.ckpt-9.data-00000-of-00001": "values",
    }
    for name, content in theirs.items():
        (tmp_path / name).write_text(content)
    assert latest_checkpoint(tmp_path) is None
    save_steps(tmp_path, 1)
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-1"
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs
    assert caplog.text == ""


def test_a_pointer_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret-1").write_text("xx")
    (tmp_path / "inner" / "checkpoints.json").write_text(
        json.dumps({"version": 1, "checkpoints": [{"name": "../secret-1", "bytes": 2}]})
    )
    assert latest_checkpoint(tmp_path / "inner") is None


def test_restore_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"There is no checkpoint .*nothing-1"):
        Saver().restore(CounterSession(), tmp_path / "nothing-1")
    broken = tmp_path / "broken-1"
    broken.write_text("{")
    with pytest.raises(CheckpointError, match=r"Cannot restore the checkpoint .*broken-1: "):
        Saver().restore(CounterSession(), broken)


def test_sessions_without_state_are_refused(tmp_path: Path) -> None:
    (tmp_path / "some-1").write_text("x")
    with pytest.raises(CheckpointError, match=r"type object has no save_state\(path\)"):
        Saver().save(object(), tmp_path / "model.ckpt", 1)
    with pytest.raises(CheckpointError, match=r"type object has no load_state\(path\)"):
        Saver().restore(object(), tmp_path / "some-1")


def test_torch_state_goes_to_disk_and_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tensortap.engines.torch import Session

    model = torch.nn.Linear(2, 1)
    session = Session(lambda x: {"y": model(x)}, modules={"model": model})
    session.run(feed_dict={"x": torch.ones(1, 2)})
    before = model.weight.detach().clone()
    path = Saver().save(session, tmp_path / "model.ckpt", 1)
    with torch.no_grad():
        model.weight.zero_()
    session.run(feed_dict={"x": torch.ones(1, 2)})
    Saver().restore(session, path)
    assert torch.equal(model.weight, before)
    assert session.run("global_step:0") == 1
