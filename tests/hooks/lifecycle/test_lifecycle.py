"""Our monitored sessions call hooks exactly as TensorFlow's do, except where the table below says why not.

# A7-A45
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import tensortap.errors as errors
from tensortap.hooks.args import SessionRunArgs
from tensortap.hooks.builtin.checkpoint import CheckpointSaverHook
from tensortap.hooks.builtin.counter import StepCounterHook
from tensortap.hooks.builtin.nan import NanTensorHook
from tensortap.hooks.builtin.stopping import StopAtStepHook
from tensortap.hooks.creators import ChiefSessionCreator, SessionCreator
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.monitored import MonitoredSession, SingularMonitoredSession
from tensortap.hooks.saver import Saver
from tensortap.seam.graph import Graph, get_default_graph
from tests.patience import patient

from ..counter_session import CounterSession
from . import scenarios

_START = ["a.begin", "b.begin", "create", "a.after_create_session", "b.after_create_session"]
_RUN = ["a.before_run", "b.before_run", "a.after_run", "b.after_run", "returned:1"]
_RUN_2 = [*_RUN[:4], "returned:2"]
_ALONE = ["a.begin", "create", "a.after_create_session"]
_RUN_ALONE = ["a.before_run", "a.after_run", "returned:1"]


def _isolated_after_run(*after: str) -> tuple[list[str], list[str]]:
    """(ours, theirs) when the first hook fails in the second run's after_run."""
    head = [*_START, *_RUN, "a.before_run", "b.before_run", "a.after_run"]
    return [*head, "b.after_run", *after], [*head, *after]


def _isolated_end(error: str) -> tuple[list[str], list[str]]:
    """(ours, theirs) when the first hook fails in end."""
    head = [*_START, *_RUN, *_RUN_2, "should_stop:False", "a.end"]
    return [*head, "b.end", f"raised:{error}"], [*head, f"raised:{error}"]


def _four_runs_one_repeated(*returned: int) -> list[str]:
    """Four runs of which the second is aborted in after_run and repeated on a new session."""
    runs = [["a.before_run", "a.after_run", f"returned:{each}"] for each in returned]
    preempted = ["a.before_run", "a.after_run", "a.after_create_session"]
    return [*runs[0], *preempted, *runs[1], *runs[2], *runs[3]]


_ISOLATION = "one failing hook does not keep the others from their after_run and end (X20)"
_AFTER_RECOVERY = [
    "create",
    "a.after_create_session",
    "b.after_create_session",
    *_RUN,
    "should_stop:False",
    "a.end",
    "b.end",
    "after the block",
]
_BEGIN_ALONE = ["a.begin", "a.after_create_session"]
_SAVED_ONLY_OF_SUCCESS = "nothing is saved of a run in which a hook fails, also when the saver comes first"
_CLOSE_TWICE = "a second close is harmless and calls no end() again (X5)"

# scenario: (why, our log, TensorFlow's log)
DIFFERENCES: dict[str, tuple[str, list[str], list[str]]] = {
    "value_error_in_after_run": (_ISOLATION, *_isolated_after_run("raised:ValueError")),
    "out_of_range_in_after_run": (_ISOLATION, *_isolated_after_run("a.end", "b.end", "after the block")),
    "stop_iteration_in_after_run": (_ISOLATION, *_isolated_after_run("a.end", "b.end", "after the block")),
    "value_error_in_end": (_ISOLATION, *_isolated_end("ValueError")),
    "out_of_range_in_end": (_ISOLATION, *_isolated_end("OutOfRangeError")),
    "stop_iteration_in_end": (_ISOLATION, *_isolated_end("StopIteration")),
    "aborted_in_end": (_ISOLATION, *_isolated_end("AbortedError")),
    "unavailable_in_end": (_ISOLATION, *_isolated_end("UnavailableError")),
    "singular_aborted_in_end": (
        _ISOLATION,
        [*_START[:2], *_START[3:], *_RUN, "a.end", "b.end", "raised:AbortedError"],
        [*_START[:2], *_START[3:], *_RUN, "a.end", "raised:AbortedError"],
    ),
    "nan_found_after_the_saver": (
        _SAVED_ONLY_OF_SUCCESS,
        ["returned:1", "returned:2", "saved:[0, 1, 2]", "raised:NanLossDuringTrainingError"],
        ["returned:1", "returned:2", "saved:[0, 1, 2, 3]", "raised:NanLossDuringTrainingError"],
    ),
    "value_error_after_the_saver": (
        _SAVED_ONLY_OF_SUCCESS,
        [*_BEGIN_ALONE, *_RUN_ALONE, *_RUN_ALONE[:2], "saved:[0, 1]", "raised:ValueError"],
        [*_BEGIN_ALONE, *_RUN_ALONE, *_RUN_ALONE[:2], "saved:[0, 1, 2]", "raised:ValueError"],
    ),
    "aborted_after_the_saver": (
        _SAVED_ONLY_OF_SUCCESS,
        [*_BEGIN_ALONE, *_four_runs_one_repeated(1, 2, 3, 4), "a.end", "saved:[0, 1, 2, 3, 4]"],
        # The second batch is trained twice.
        [*_BEGIN_ALONE, *_four_runs_one_repeated(1, 3, 4, 5), "a.end", "saved:[1, 2, 3, 4, 5]"],
    ),
    "stop_requested_and_error_in_the_same_run": (
        "a stop that was requested is not lost because a hook failed afterwards (follows from X20)",
        [*_ALONE, *_RUN_ALONE[:2], "raised:ValueError", "should_stop:True", "a.end"],
        [*_ALONE, *_RUN_ALONE[:2], "raised:ValueError", "should_stop:False", "a.end"],
    ),
    "hooks_from_a_generator": (
        "a generator of hooks is made a list, so its hooks live beyond begin() (A9)",
        [*_ALONE, *_RUN_ALONE, "a.end"],
        ["a.begin", "create", "returned:1"],
    ),
    "hook_and_caller_feed_the_same_in_two_spellings": (
        "two spellings of one tensor are one feed key (A16)",
        [*_ALONE, "a.before_run", "raised:RuntimeError"],
        [*_ALONE, "a.before_run", "a.after_run:4", "returned:1", "a.end"],
    ),
    "run_after_close": (
        "the error says that the session is closed (A43)",
        [*_ALONE, "a.end", "raised:SessionClosedError"],
        [*_ALONE, "a.end", "raised:AttributeError"],
    ),
    "close_twice": (
        _CLOSE_TWICE,
        [*_ALONE, "a.end"],
        [*_ALONE, "a.end", "a.end:no session", "raised:RuntimeError"],
    ),
    "close_inside_the_block": (
        _CLOSE_TWICE,
        [*_ALONE, *_RUN_ALONE, "a.end", "after the block"],
        [*_ALONE, *_RUN_ALONE, "a.end", "a.end:no session", "raised:RuntimeError"],
    ),
    "singular_close_twice": (
        _CLOSE_TWICE,
        ["a.begin", "a.after_create_session", "a.end", "should_stop:True"],
        [
            "a.begin",
            "a.after_create_session",
            "a.end",
            "should_stop:True",
            "a.end:no session",
            "raised:RuntimeError",
        ],
    ),
    "raw_session_of_a_step_function_after_recovery": (
        "step_context.session is the session in use, not the one before the recovery (X7)",
        ["create", "create", "current:True"],
        ["create", "create", "current:False"],
    ),
}


class LoggingHook(scenarios.Hook, SessionRunHook):
    """The scenario's hook as one of ours."""


class OurWorld:
    x, y, z, step = "x", "y", "z", "global_step_after"
    x_spelled_otherwise = "x:0"

    def __init__(self, directory: Path) -> None:
        self.log: list[str] = []
        self.directory = directory
        self.graph = Graph()
        self.raw: Any = None

    def hook(self, name: str, plan: Any = None, request: Any = None) -> LoggingHook:
        return LoggingHook(self, name, plan, request)

    def args(self, fetches: Any, feed_dict: Any = None) -> SessionRunArgs:
        return SessionRunArgs(fetches, feed_dict)

    def aborted(self) -> Exception:
        return errors.AbortedError(None, None, "planted")

    def unavailable(self) -> Exception:
        return errors.UnavailableError(None, None, "planted")

    def out_of_range(self) -> Exception:
        return errors.OutOfRangeError(None, None, "planted")

    def subclassed(self, error: Exception, name: str) -> Exception:
        return type(name, (type(error),), {})(None, None, "planted")

    def _session(self, failures: Any, close_error: Any = None) -> CounterSession:
        def step(x: int = 1, z: int = 0) -> dict[str, int]:
            loss = math.log(x) if x > 0 else math.nan
            return {"y": 2 * x, "z": z, "loss": loss, self.step: session.global_step + 1}

        session = CounterSession(step, failures, close_error)
        return session

    def monitored(
        self, hooks: Any, engine: Iterable[Any] = (), create: Iterable[Any] = (), close_error: Any = None
    ) -> Any:
        world, failures, create_failures = self, iter(engine), iter(create)

        class Creator(SessionCreator):
            def create_session(self) -> Any:
                world.log.append("create")
                failure = next(create_failures, None)
                if failure is not None:
                    raise failure
                world.raw = world._session(failures, close_error)
                return world.raw

        with self.graph.as_default():
            return MonitoredSession(Creator(), hooks, stop_grace_period_secs=5)

    def wrapped(self, hooks: Any) -> Any:
        world = self

        class Creator(SessionCreator):
            def __init__(self) -> None:
                self.chief = ChiefSessionCreator(session=lambda: world._session(()))

            def create_session(self) -> Any:
                world.log.append("create")
                return self.chief.create_session()

        with self.graph.as_default():
            return MonitoredSession(Creator(), hooks, stop_grace_period_secs=5)

    def stop_at(self, last_step: int) -> Any:
        return StopAtStepHook(last_step=last_step)

    def step_counter(self) -> Any:
        return StepCounterHook(every_n_steps=1)

    def derive(self, name: str) -> Any:
        return get_default_graph().add_derived(name, lambda y: y + 1, ["y:0"])

    def nan_hook(self) -> NanTensorHook:
        return NanTensorHook("loss")

    def saver(self) -> CheckpointSaverHook:
        return CheckpointSaverHook(self.directory, save_steps=1, saver=Saver())

    def checkpointed(self, hooks: Any) -> Any:
        with self.graph.as_default():
            creator = ChiefSessionCreator(checkpoint_dir=self.directory, session=lambda: self._session(()))
            return MonitoredSession(creator, hooks, stop_grace_period_secs=5)

    def saved(self) -> list[int]:
        return sorted(int(file.name.rpartition("-")[2]) for file in self.directory.glob("model.ckpt-*"))

    def singular(self, hooks: Any) -> Any:
        with self.graph.as_default():
            return SingularMonitoredSession(hooks, session=self._session(()), stop_grace_period_secs=5)


@pytest.fixture(scope="module")
def tensorflow_world() -> dict[str, Any]:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed, so there is nothing to compare with")
    script = Path(__file__).with_name("tensorflow_world.py")
    # A process of its own: TensorFlow and another engine in one process get in each other's way.
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=patient(240), check=False
    )
    assert done.returncode == 0, done.stderr
    world: dict[str, Any] = json.loads(done.stdout)
    return world


@pytest.fixture(scope="module")
def tensorflow_logs(tensorflow_world: dict[str, Any]) -> dict[str, list[str]]:
    logs: dict[str, list[str]] = tensorflow_world["logs"]
    return logs


def test_every_scenario_is_played_by_tensorflow(tensorflow_logs: dict[str, list[str]]) -> None:
    assert list(tensorflow_logs) == list(scenarios.SCENARIOS)
    assert set(DIFFERENCES) <= set(scenarios.SCENARIOS)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_hooks_are_called_as_in_tensorflow(
    name: str, tensorflow_logs: dict[str, list[str]], tmp_path: Path
) -> None:
    ours = scenarios.play(name, OurWorld(tmp_path))
    theirs = tensorflow_logs[name]
    if name in DIFFERENCES:
        why, our_expected, their_expected = DIFFERENCES[name]
        assert (ours, theirs) == (our_expected, their_expected), why
        assert ours != theirs, f"no longer a difference: {why}"
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_our_hooks_live_in_tensorflows_sessions_as_its_own_do(
    name: str, tensorflow_world: dict[str, Any]
) -> None:
    assert tensorflow_world["guests"][name] == tensorflow_world["logs"][name]
