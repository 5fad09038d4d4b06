"""The dumping hook (seed page 000; C28 to C31)."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch

import tensortap as tt
from tensortap.debug.hooks import DumpingDebugHook
from tensortap.errors import OpError
from tensortap.hooks.args import SessionRunArgs, SessionRunContext
from tensortap.seam.options import RunOptions
from tensortap.sink.budget import Budget
from tensortap.sink.retention import Retention
from tensortap.watch.options import WatchOptions
from tests.debug.steps import X, failing_session, linear_session, runs, tensors


def test_the_interface_is_the_documented_one():
    """Seed page 000."""
    parameters = inspect.signature(DumpingDebugHook.__init__).parameters.values()
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == ["self", "session_root", "watch_fn", "thread_name_filter", "log_usage"]
    assert issubclass(DumpingDebugHook, tt.SessionRunHook)


def test_a_hook_dumps_every_run_of_a_monitored_session(tmp_path):
    hook = DumpingDebugHook(tmp_path / "root")
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        for _ in range(3):
            session.run("loss", {"x": X})
    dumps = runs(tmp_path / "root")
    assert len(dumps) == 3
    for step, dump in enumerate(dumps):
        assert "model/addmm:0:DebugIdentity" in tensors(dump)
        assert dump.core_metadata.global_step == step
        assert dump.run_fetches_info == "loss"
        assert dump.nodes()
        assert dump.counts["written"] == dump.size


def test_before_run_asks_for_options_only(tmp_path):
    """C28."""
    hook = DumpingDebugHook(tmp_path / "root")
    context = SessionRunContext(SessionRunArgs("loss", {"x": X}), linear_session())
    args = hook.before_run(context)
    assert (args.fetches, args.feed_dict) == (None, None)
    (watch,) = args.options.debug_options.debug_tensor_watch_opts
    assert watch.debug_urls[0].startswith(f"file://{tmp_path}/root/run_")


def test_a_bad_root_is_told_before_the_first_run(tmp_path):
    """C28."""
    (tmp_path / "file").touch()
    hook = DumpingDebugHook(tmp_path)
    with pytest.raises(ValueError, match="not empty"):
        with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
            session.run("loss")


def test_mistakes_that_can_be_seen_at_once_are_told_at_once(tmp_path):
    with pytest.raises(TypeError, match="watch_fn"):
        DumpingDebugHook(tmp_path, watch_fn=7)
    with pytest.raises(ValueError, match="thread_name_filter"):
        DumpingDebugHook(tmp_path, thread_name_filter="(")


def test_a_stateful_watch_fn(tmp_path):
    """C20, through the hook."""
    ops = iter(["DebugIdentity", "DebugNanCount"])
    hook = DumpingDebugHook(
        tmp_path / "root", lambda fetches, feeds: WatchOptions(next(ops), "model/addmm"), log_usage=False
    )
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        session.run("loss")
        session.run("loss")
    assert [tensors(dump) for dump in runs(tmp_path / "root")] == [
        {"model/addmm:0:DebugIdentity"},
        {"model/addmm:0:DebugNanCount"},
    ]


def test_ready_watch_options_do_for_all_runs(tmp_path):
    """C20: where it need not decide anew, no function is needed."""
    watch = WatchOptions("DebugNanCount", "model/addmm")
    hook = DumpingDebugHook(tmp_path / "hook", watch)
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        session.run("loss")
        session.run("loss")
    with tt.DumpingDebugWrapperSession(linear_session(), tmp_path / "wrapper", watch) as session:
        session.run("loss")
    dumps = [*runs(tmp_path / "hook"), *runs(tmp_path / "wrapper")]
    assert [tensors(dump) for dump in dumps] == [{"model/addmm:0:DebugNanCount"}] * 3


def test_the_thread_filter_is_honoured(tmp_path):
    """X3, against C29."""
    hook = DumpingDebugHook(tmp_path / "root", thread_name_filter="main-")
    session = tt.MonitoredSession(linear_session(), hooks=[hook])
    for name in ("main-1", "side-1"):
        thread = threading.Thread(target=session.run, args=("loss",), name=name)
        thread.start()
        thread.join()
    session.close()
    assert len(runs(tmp_path / "root")) == 1


def test_threads_that_all_come_first_share_one_root(tmp_path):
    hook = DumpingDebugHook(tmp_path / "root")
    session = tt.MonitoredSession(tt.torch.Session(lambda x: {"y": x * 2}), hooks=[hook])
    threads = [threading.Thread(target=session.run, args=("y", {"x": X})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.close()
    assert [dump.size for dump in runs(tmp_path / "root")] == [2] * 4


def test_errors_of_a_run_propagate_and_its_dump_is_whole(tmp_path):
    """C30: without any further call, not even the end of the session."""
    hook = DumpingDebugHook(tmp_path / "root")
    session = tt.MonitoredSession(failing_session(), hooks=[hook])
    with pytest.raises(OpError):
        session.run("z", {"x": X})
    hook.flush()
    (dump,) = runs(tmp_path / "root")
    assert {"add:0:DebugIdentity", "mul:0:DebugIdentity"} <= tensors(dump)
    assert dump.error
    assert dump.nodes()
    session.close()


def test_two_hooks_get_what_each_of_them_asked_for(tmp_path):
    hooks = [
        DumpingDebugHook(tmp_path / "values", lambda *_: WatchOptions("DebugIdentity", "model/addmm")),
        DumpingDebugHook(tmp_path / "health", lambda *_: WatchOptions("DebugNumericSummary")),
    ]
    caller = RunOptions()
    with tt.MonitoredSession(linear_session(), hooks=hooks) as session:
        session.run("loss", options=caller)
        session.run("loss", options=caller)
    for dump in runs(tmp_path / "values"):
        assert tensors(dump) == {"model/addmm:0:DebugIdentity"}
    for dump in runs(tmp_path / "health"):
        assert {key.rpartition(":")[2] for key in tensors(dump)} == {"DebugNumericSummary"}
    assert caller == RunOptions()


def test_a_loop_that_stays_as_it_is(tmp_path):
    model = torch.nn.Linear(3, 1)
    hook = DumpingDebugHook(tmp_path / "root", retention=Retention(every=2))
    with tt.torch.monitor(model, hooks=[hook]) as monitor:
        for _ in range(3):
            with monitor.run():
                model(X).sum().backward()
    dumps = runs(tmp_path / "root")
    assert [dump.core_metadata.global_step for dump in dumps] == [0, 2]
    assert all("model/addmm:0:DebugIdentity" in tensors(dump) for dump in dumps)


def test_a_recovered_session_goes_on_in_the_same_root(tmp_path):
    lost = iter([False, True, False, False])

    def step(x):
        if next(lost):
            raise tt.errors.UnavailableError(None, "a peer is gone")
        return {"y": x * 2}

    hook = DumpingDebugHook(tmp_path / "root")
    with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
        for _ in range(3):
            session.run("y", {"x": X})
    errors = [dump.error for dump in runs(tmp_path / "root")]
    assert [bool(error) for error in errors] == [False, True, False, False]


def test_an_error_outside_of_a_run_keeps_the_runs_that_led_to_it(tmp_path):
    hook = DumpingDebugHook(tmp_path / "root", retention=Retention(when="inf_or_nan", last=2))
    with pytest.raises(ZeroDivisionError):
        with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
            for _ in range(5):
                session.run("loss")
            1 / 0  # noqa: B018
    assert [dump.core_metadata.global_step for dump in runs(tmp_path / "root")] == [3, 4]


def test_the_budget_of_a_session(tmp_path):
    hook = DumpingDebugHook(tmp_path / "root", budget=Budget(bytes_per_session=200))
    with tt.MonitoredSession(linear_session(), hooks=[hook]) as session:
        for _ in range(5):
            session.run("loss")
    dumps = runs(tmp_path / "root")
    assert sum(dump.counts["written_bytes"] for dump in dumps) < 200
    assert dumps[-1].counts["written"] == 0
    assert dumps[-1].counts["dropped: session budget"] > 0


def test_a_keyboard_interrupt_in_a_run_leaves_a_whole_dump(tmp_path):
    def step(x):
        y = x * 2
        raise KeyboardInterrupt(y)

    hook = DumpingDebugHook(tmp_path / "root")
    with pytest.raises(KeyboardInterrupt):
        with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
            session.run(None, {"x": X})
    (dump,) = runs(tmp_path / "root")
    assert "mul:0:DebugIdentity" in tensors(dump)
    assert dump.error == "interrupted"
