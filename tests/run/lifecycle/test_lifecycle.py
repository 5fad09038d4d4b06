"""Our monitored sessions call hooks exactly as TensorFlow's do, except where the table below says why not.

# A7-A45
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import tensortap.errors as errors
from tensortap.engines.graph import Graph
from tensortap.run.args import SessionRunArgs
from tensortap.run.creators import SessionCreator
from tensortap.run.hooks import SessionRunHook
from tensortap.run.monitored import MonitoredSession, SingularMonitoredSession
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
_CLOSE_TWICE = "a second close is harmless and calls no end() again (X5)"

# scenario: (why, our log, TensorFlow's log)
DIFFERENCES: dict[str, tuple[str, list[str], list[str]]] = {
    "value_error_in_after_run": (_ISOLATION, *_isolated_after_run("raised:ValueError")),
    "out_of_range_in_after_run": (_ISOLATION, *_isolated_after_run("a.end", "b.end", "after the block")),
    "stop_iteration_in_after_run": (_ISOLATION, *_isolated_after_run("a.end", "b.end", "after the block")),
    "aborted_in_after_run": (_ISOLATION, *_isolated_after_run(*_AFTER_RECOVERY)),
    "unavailable_in_after_run": (_ISOLATION, *_isolated_after_run(*_AFTER_RECOVERY)),
    "value_error_in_end": (_ISOLATION, *_isolated_end("ValueError")),
    "out_of_range_in_end": (_ISOLATION, *_isolated_end("OutOfRangeError")),
    "stop_iteration_in_end": (_ISOLATION, *_isolated_end("StopIteration")),
    "aborted_in_end": (_ISOLATION, *_isolated_end("AbortedError")),
    "unavailable_in_end": (_ISOLATION, *_isolated_end("UnavailableError")),
    "singular_aborted_in_after_run": (
        _ISOLATION,
        [*_START[:2], *_START[3:], *_RUN[:4], "raised:AbortedError"],
        [*_START[:2], *_START[3:], *_RUN[:3], "raised:AbortedError"],
    ),
    "singular_aborted_in_end": (
        _ISOLATION,
        [*_START[:2], *_START[3:], *_RUN, "a.end", "b.end", "raised:AbortedError"],
        [*_START[:2], *_START[3:], *_RUN, "a.end", "raised:AbortedError"],
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

    def __init__(self) -> None:
        self.log: list[str] = []
        self.graph = Graph()
        self.raw: Any = None

    def hook(self, name: str, plan: Any = None, request: Any = None) -> LoggingHook:
        return LoggingHook(self, name, plan, request)

    def args(self, fetches: Any, feed_dict: Any = None) -> SessionRunArgs:
        return SessionRunArgs(fetches, feed_dict)

    def aborted(self) -> Exception:
        return errors.AbortedError(None, "planted")

    def unavailable(self) -> Exception:
        return errors.UnavailableError(None, "planted")

    def out_of_range(self) -> Exception:
        return errors.OutOfRangeError(None, "planted")

    def subclassed(self, error: Exception, name: str) -> Exception:
        return type(name, (type(error),), {})(None, "planted")

    def _session(self, failures: Any, close_error: Any = None) -> CounterSession:
        def step(x: int = 1, z: int = 0) -> dict[str, int]:
            return {"y": 2 * x, "z": z, self.step: session.global_step + 1}

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

    def singular(self, hooks: Any) -> Any:
        with self.graph.as_default():
            return SingularMonitoredSession(hooks, session=self._session(()), stop_grace_period_secs=5)


@pytest.fixture(scope="module")
def tensorflow_logs() -> dict[str, list[str]]:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed, so there is nothing to compare with")
    script = Path(__file__).with_name("tensorflow_world.py")
    # A process of its own: TensorFlow and another engine in one process get in each other's way.
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=patient(240), check=False
    )
    assert done.returncode == 0, done.stderr
    logs: dict[str, list[str]] = json.loads(done.stdout)
    return logs


def test_every_scenario_is_played_by_tensorflow(tensorflow_logs: dict[str, list[str]]) -> None:
    assert list(tensorflow_logs) == list(scenarios.SCENARIOS)
    assert set(DIFFERENCES) <= set(scenarios.SCENARIOS)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_hooks_are_called_as_in_tensorflow(name: str, tensorflow_logs: dict[str, list[str]]) -> None:
    ours = scenarios.play(name, OurWorld())
    theirs = tensorflow_logs[name]
    if name in DIFFERENCES:
        why, our_expected, their_expected = DIFFERENCES[name]
        assert (ours, theirs) == (our_expected, their_expected), why
        assert ours != theirs, f"no longer a difference: {why}"
    else:
        assert ours == theirs
