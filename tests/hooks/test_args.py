"""What hooks ask for and get, and how requests are merged."""

from __future__ import annotations

from typing import Any

import pytest

from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.monitored import MonitoredSession
from tensortap.seam.graph import TensorRef
from tensortap.seam.options import DebugOptions, DebugTensorWatch, RunMetadata, RunOptions, TraceLevel

from .counter_session import CounterSession


class Asking(SessionRunHook):
    """Asks for the same in every run and keeps what it gets."""

    def __init__(self, *request: Any, **more: Any) -> None:
        self.request = SessionRunArgs(*request, **more) if request or more else None
        self.values: list[SessionRunValues] = []
        self.contexts: list[SessionRunContext] = []

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        self.contexts.append(run_context)
        return self.request

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self.contexts.append(run_context)
        self.values.append(run_values)


def watch(name: str) -> DebugTensorWatch:
    return DebugTensorWatch(name)


def test_args_are_an_immutable_triple() -> None:  # A1
    args = SessionRunArgs("loss")
    assert args == ("loss", None, None)
    with pytest.raises(AttributeError):
        args.fetches = "other"  # type: ignore[misc]


def test_values_are_an_immutable_triple() -> None:  # A5
    values = SessionRunValues(1, None, None)
    with pytest.raises(AttributeError):
        values.results = 2  # type: ignore[misc]


def test_stop_request_is_idempotent() -> None:  # A2
    context = SessionRunContext(SessionRunArgs("loss"), "session")
    assert not context.stop_requested
    context.request_stop()
    context.request_stop()
    assert context.stop_requested
    assert context.session == "session"


def test_context_shows_the_callers_request_without_options() -> None:  # A3 A4 A6
    hooks = [Asking("z"), Asking()]
    raw = CounterSession()
    with MonitoredSession(raw, hooks) as session:
        session.run("y", {"x": 2}, options=RunOptions(timeout_in_ms=1))
    contexts = hooks[0].contexts + hooks[1].contexts
    assert len({id(each) for each in contexts}) == 1
    assert contexts[0].original_args == SessionRunArgs("y", {"x": 2}, None)
    assert contexts[0].session is raw


def test_results_have_the_structure_each_party_asked_for() -> None:  # A5 A14
    hooks = [Asking(["y", {"deep": ("z",)}]), Asking(None), Asking(), Asking("global_step:0")]
    raw = CounterSession()
    with MonitoredSession(raw, hooks) as session:
        assert session.run({"mine": "y"}, {"x": 3}) == {"mine": 6}
        assert session.run() == {"y": 2, "z": 0}
    assert [hook.values[0].results for hook in hooks] == [[6, {"deep": (0,)}], None, None, 1]
    assert len(raw.calls) == 2  # one engine run for everybody


def test_callers_fetches_stand_alone_when_no_hook_fetches() -> None:  # A14
    raw = CounterSession()
    with MonitoredSession(raw, [Asking()]) as session:
        session.run("y")
    assert raw.calls == [("y", None)]


def test_feeds_are_joined_and_the_callers_dict_is_left_alone() -> None:  # A15
    mine = {"x": 5}
    hook = Asking("z", {"z": 7})
    with MonitoredSession(CounterSession(), [hook]) as session:
        assert session.run("y", mine) == 10
    assert hook.values[0].results == 7
    assert mine == {"x": 5}


@pytest.mark.parametrize("spelling", ["x", "x:0", "reference"])
def test_two_hooks_feeding_one_tensor(spelling: str) -> None:  # A15 A16
    raw = CounterSession()
    key = TensorRef(raw.graph, "x:0") if spelling == "reference" else spelling
    with (
        pytest.raises(RuntimeError, match=r"^Two hooks feed the same tensor: x:0"),
        MonitoredSession(raw, [Asking(None, {"x": 1, "z": 2}), Asking(None, {key: 1})]) as session,
    ):
        session.run("y")
    assert raw.calls == []


def test_hook_and_caller_feeding_one_tensor() -> None:  # A15 A16
    with (
        pytest.raises(RuntimeError, match=r"^A hook and the caller of run\(\) .*: x:0, z:0"),
        MonitoredSession(CounterSession(), [Asking(None, {"x": 1, "z:0": 2})]) as session,
    ):
        session.run("y", {"z": 1, "x:0": 1})


def test_options_of_all_parties_are_merged() -> None:  # A17 A18
    callers = RunOptions(
        timeout_in_ms=5,
        debug_options=DebugOptions([watch("caller")]),
        report_tensor_allocations_upon_oom=True,
    )
    hooks = [
        Asking(
            None,
            options=RunOptions(
                TraceLevel.FULL_TRACE,
                timeout_in_ms=9,
                debug_options=DebugOptions([watch("one")], global_step=7),
            ),
        ),
        Asking(
            None,
            options=RunOptions(
                TraceLevel.SOFTWARE_TRACE,
                timeout_in_ms=2,
                output_partition_graphs=True,
                debug_options=DebugOptions([watch("two")], reset_disk_byte_usage=True),
            ),
        ),
    ]
    raw = CounterSession()
    with MonitoredSession(raw, hooks) as session:
        session.run("y", options=callers)
    merged = RunOptions(
        TraceLevel.FULL_TRACE,
        timeout_in_ms=9,
        output_partition_graphs=True,
        report_tensor_allocations_upon_oom=True,
        debug_options=DebugOptions([watch("caller"), watch("one"), watch("two")], 7, True),
    )
    assert raw.options == [merged]
    assert [hook.values[0].options for hook in hooks] == [merged, merged]


def test_a_callers_options_do_not_collect_the_watches_of_every_run() -> None:  # A17
    mine = RunOptions()
    hook = Asking(None, options=RunOptions(debug_options=DebugOptions([watch("w")])))
    raw = CounterSession()
    with MonitoredSession(raw, [hook]) as session:
        for _ in range(3):
            session.run("y", options=mine)
    assert mine == RunOptions()
    assert [len(each.debug_options.debug_tensor_watch_opts) for each in raw.options if each] == [1, 1, 1]


def test_metadata_is_the_callers_object_for_everyone() -> None:  # A19
    mine = RunMetadata()
    hooks = [Asking(), Asking("y")]
    with MonitoredSession(CounterSession(), hooks) as session:
        session.run("y", run_metadata=mine)
        session.run("y")
    assert mine.step_stats == "stats of step 1"
    assert all(hook.values[0].run_metadata is mine for hook in hooks)
    made = hooks[0].values[1].run_metadata
    assert made is hooks[1].values[1].run_metadata
    assert made is not None
    assert made.step_stats == "stats of step 2"


def test_a_hook_that_returns_something_else_is_named() -> None:
    class Wrong(SessionRunHook):
        def before_run(self, run_context: SessionRunContext) -> Any:
            return "loss"

    with (
        pytest.raises(TypeError, match=r"before_run of Wrong returned 'loss'.*SessionRunArgs"),
        MonitoredSession(CounterSession(), [Wrong()]) as session,
    ):
        session.run("y")
