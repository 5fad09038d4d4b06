"""How chiefs and workers get a session that is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensortap.errors import CheckpointError, DeadlineExceededError
from tensortap.hooks.creators import ChiefSessionCreator, WorkerSessionCreator, as_session_creator
from tensortap.hooks.saver import Saver
from tensortap.hooks.scaffold import Scaffold

from .conftest import FakeClock
from .counter_session import CounterSession


class Log:
    """A scaffold whose pieces note that they were used."""

    def __init__(self, missing: Any = None, missing_before_local_init: Any = None) -> None:
        self.used: list[str] = []
        self.scaffold = Scaffold(
            init_op=lambda session: self.used.append("init_op"),
            init_fn=lambda scaffold, session: self.used.append("init_fn"),
            ready_for_local_init_op=lambda session: self._check(
                "ready_for_local_init", missing_before_local_init
            ),
            local_init_op=lambda session: self.used.append("local_init_op"),
            ready_op=lambda session: self._check("ready", missing),
        )

    def _check(self, name: str, missing: Any) -> Any:
        self.used.append(name)
        return missing() if callable(missing) else missing


def checkpoint(directory: Path, step: int) -> Path:
    session = CounterSession()
    session.global_step = step
    return Saver().save(session, directory / "model.ckpt", step)


def test_chief_initialises(tmp_path: Path) -> None:  # A49
    log = Log()
    session = ChiefSessionCreator(
        log.scaffold, checkpoint_dir=tmp_path, session=CounterSession
    ).create_session()
    assert log.used == ["init_op", "init_fn", "ready_for_local_init", "local_init_op", "ready"]
    assert session.graph.finalized


@pytest.mark.parametrize("by", ["directory", "file"])
def test_chief_restores_instead(tmp_path: Path, by: str) -> None:  # A49
    path = checkpoint(tmp_path, 5)
    where: dict[str, Any] = (
        {"checkpoint_dir": tmp_path} if by == "directory" else {"checkpoint_filename_with_path": path}
    )
    log = Log()
    session = ChiefSessionCreator(log.scaffold, **where, session=CounterSession).create_session()
    assert session.global_step == 5
    assert log.used == ["ready_for_local_init", "local_init_op", "ready"]


def test_directory_and_file_together(tmp_path: Path) -> None:  # A49
    with pytest.raises(ValueError, match="not both"):
        ChiefSessionCreator(
            checkpoint_dir=tmp_path, checkpoint_filename_with_path="x", session=CounterSession
        )


def test_a_named_checkpoint_must_exist(tmp_path: Path) -> None:  # A49
    creator = ChiefSessionCreator(checkpoint_filename_with_path=tmp_path / "x-1", session=CounterSession)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        creator.create_session()


def test_chief_says_what_is_missing_after_init() -> None:  # A49
    log = Log(missing=["weight", "bias"])
    made: list[CounterSession] = []

    def make() -> CounterSession:
        made.append(CounterSession())
        return made[-1]

    with pytest.raises(RuntimeError, match=r"after running init_op and init_fn; missing: weight, bias\."):
        ChiefSessionCreator(log.scaffold, session=make).create_session()
    assert made[0].closed


def test_chief_says_what_is_missing_after_restore(tmp_path: Path) -> None:  # A49
    checkpoint(tmp_path, 5)
    log = Log(missing_before_local_init=["weight"])
    raw = CounterSession()
    with pytest.raises(RuntimeError, match=r"after restoring .*model.ckpt-5; missing: weight"):
        ChiefSessionCreator(log.scaffold, checkpoint_dir=tmp_path, session=raw).create_session()
    assert log.used == ["ready_for_local_init"]  # local init only when ready for it
    assert not raw.closed  # the user's own session is not ours to close


def test_feeds_of_the_pieces() -> None:  # A46
    raw = CounterSession()
    scaffold = Scaffold(
        init_op="y", init_feed_dict={"x": 3}, local_init_op="z", local_init_feed_dict={"z": 4}
    )
    ChiefSessionCreator(scaffold, session=raw).create_session()
    assert raw.calls == [("y", {"x": 3}), ("z", {"z": 4})]


def test_worker_waits_for_the_chief(clock: FakeClock) -> None:  # A50
    missing = iter([["weight"], ["weight"], None])
    log = Log(missing=lambda: next(missing))
    made: list[CounterSession] = []

    def make() -> CounterSession:
        made.append(CounterSession())
        return made[-1]

    session = WorkerSessionCreator(log.scaffold, session=make).create_session()
    assert clock.slept == [30, 30]
    assert [each.closed for each in made] == [True, True, False]
    assert session is made[-1]
    assert "init_op" not in log.used
    assert "init_fn" not in log.used


def test_worker_does_not_wait_for_ever(clock: FakeClock) -> None:  # A50
    log = Log(missing=["weight"])
    with pytest.raises(DeadlineExceededError, match=r"not ready after waiting 100 s; missing: weight"):
        WorkerSessionCreator(log.scaffold, max_wait_secs=100, session=CounterSession()).create_session()
    assert sum(clock.slept) <= 100


def test_worker_waits_half_an_hour_by_default(clock: FakeClock) -> None:  # A50
    with pytest.raises(DeadlineExceededError):
        WorkerSessionCreator(Log(missing=["w"]).scaffold, session=CounterSession()).create_session()
    assert sum(clock.slept) == 1800


@pytest.mark.parametrize("creator", [ChiefSessionCreator, WorkerSessionCreator])
def test_creators_know_their_graph_beforehand(creator: Any) -> None:
    raw = CounterSession()
    assert creator(session=raw).graph is raw.graph
    made = creator(session=CounterSession)
    graph = made.graph
    assert graph.global_step == "global_step:0"
    assert made.create_session().graph is graph
    assert made.create_session().graph is graph


def test_what_a_factory_makes_is_checked() -> None:
    with pytest.raises(TypeError, match="returned 3, which is no engine session"):
        ChiefSessionCreator(session=lambda: 3).create_session()
    with pytest.raises(TypeError, match="must be an engine session or a function"):
        ChiefSessionCreator(session=3)


def test_as_session_creator() -> None:
    creator = ChiefSessionCreator(session=CounterSession())
    assert as_session_creator(creator) is creator

    class Duck:
        def create_session(self) -> Any: ...

    duck = Duck()
    assert as_session_creator(duck) is duck
    assert isinstance(as_session_creator(CounterSession()), ChiefSessionCreator)
    assert isinstance(as_session_creator(CounterSession), ChiefSessionCreator)
