"""The dumping wrapper (seed page 001; C20 to C27)."""

from __future__ import annotations

import inspect
import os
import re
import threading

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.debug.dumping import DumpingDebugWrapperSession
from tensortap.errors import InvalidArgumentError, OpError
from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.sink.budget import Budget
from tensortap.sink.retention import Retention
from tensortap.watch.options import WatchOptions
from tests.debug.steps import X, failing_session, linear_session, runs, tensors
from tests.hooks.counter_session import CounterSession


def dumping(root, *args, sess=None, **kwargs):
    return DumpingDebugWrapperSession(sess or linear_session(), root, *args, **kwargs)


# --- the session root ------------------------------------------------------------------------------


def test_a_root_is_made_or_must_be_empty(tmp_path, monkeypatch):
    """C24."""
    dumping(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()
    (tmp_path / "empty").mkdir()
    dumping(str(tmp_path / "empty"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="not empty"):
        dumping(tmp_path / "full")
    with pytest.raises(ValueError, match="is a file"):
        dumping(tmp_path / "full" / "file")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dumping("~/dumps").session_root == tmp_path / "dumps"


def test_a_root_is_not_used_twice(tmp_path):
    dumping(tmp_path / "root")
    with pytest.raises(ValueError, match="not empty"):
        dumping(tmp_path / "root")


def test_no_directory_is_made_for_something_that_cannot_be_wrapped(tmp_path):
    with pytest.raises(TypeError):
        dumping(tmp_path / "root", sess="no session")
    assert not (tmp_path / "root").exists()


# --- what a run leaves -----------------------------------------------------------------------------


def test_the_interface_is_the_documented_one():
    """Seed page 001."""
    parameters = inspect.signature(DumpingDebugWrapperSession.__init__).parameters.values()
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == [
        "self", "sess", "session_root", "watch_fn", "thread_name_filter", "pass_through_operrors", "log_usage",
    ]  # fmt: skip
    documented = """
        graph graph_def run_call_count sess_str session __enter__ __exit__ as_default close
        increment_run_call_count invoke_node_stepper list_devices make_callable on_run_end on_run_start
        on_session_init partial_run partial_run_setup prepare_run_debug_urls reset run should_stop
    """
    assert [name for name in documented.split() if not hasattr(DumpingDebugWrapperSession, name)] == []


def test_each_run_is_a_directory_with_everything_in_it(tmp_path):
    """C25 to C27, C20: everything is watched without a watch_fn."""
    with dumping(tmp_path / "root") as session:
        for _ in range(3):
            session.run("loss", {"x": X})
    names = sorted(path.name for path in session.session_root.glob("run_*"))
    assert [re.fullmatch(r"run_\d{16}_(\d)", name)[1] for name in names] == ["0", "1", "2"]
    first, _, last = runs(session.session_root)
    assert tensors(first) == tensors(last)
    assert first.get_tensors("x", 0, "DebugIdentity")[0].tolist() == X.tolist()
    assert first.run_fetches_info == "loss"
    assert first.run_feed_keys_info == "['x']"
    assert [dump.core_metadata.global_step for dump in (first, last)] == [0, 2]
    assert first.counts["written"] == first.size
    assert first.counts["dropped"] == 0
    assert {"model/addmm", "x"} <= set(first.nodes())
    assert first.source_files()


def test_preparing_a_run_makes_its_directory_and_says_what_will_be_run(tmp_path):
    """The documented contract of prepare_run_debug_urls."""
    session = dumping(tmp_path / "root")
    url = session.prepare_run_debug_urls(["loss"], {"x": X})
    path = url.removeprefix("file://")
    assert url.startswith("file:///")
    assert os.path.dirname(path) == str(session.session_root)
    dump = DebugDumpDir(path)
    assert dump.run_fetches_info == "['loss']"
    assert dump.run_feed_keys_info == "['x']"
    assert dump.size == 0


def test_a_callable_has_no_fetches_to_tell(tmp_path):
    """C16."""
    with dumping(tmp_path / "root") as session:
        session.make_callable("loss", ["x"])(X)
    (dump,) = runs(session.session_root)
    assert (dump.run_fetches_info, dump.run_feed_keys_info) == ("None", "None")


def test_values_are_those_at_their_moment(tmp_path):
    """D10: a parameter before the optimizer changed it in place."""
    session = linear_session()
    before = session.run("model/weight:0").copy()
    with dumping(tmp_path / "root", sess=session) as wrapper:
        wrapper.run("loss")
    (dump,) = runs(tmp_path / "root")
    assert np.array_equal(dump.get_tensors("model/weight", 0, "DebugIdentity")[0], before)
    assert not np.array_equal(session.run("model/weight:0"), before)


# --- what is watched -------------------------------------------------------------------------------


def test_watch_fn_decides_anew_for_each_run(tmp_path):
    """C20 to C22, with state, new and older answers."""
    answers = iter(
        [
            WatchOptions("DebugNumericSummary", node_name_regex_allowlist="model/addmm"),
            ("DebugIdentity", r"model/.*", r"aten::addmm"),
            WatchOptions(["DebugNanCount", "DebugHash"], tensor_dtype_regex_allowlist="int"),
            WatchOptions(node_name_regex_denylist=r"(?!x$)"),
        ]
    )
    asked = []

    def watch_fn(fetches, feeds):
        asked.append((fetches, list(feeds)))
        return next(answers)

    with dumping(tmp_path / "root", watch_fn) as session:
        for _ in range(4):
            session.run("loss", {"x": X})
    assert asked == [("loss", ["x"])] * 4
    assert [tensors(dump) for dump in runs(tmp_path / "root")] == [
        {"model/addmm:0:DebugNumericSummary"},
        {"model/addmm:0:DebugIdentity"},
        set(),
        {"x:0:DebugIdentity"},
    ]
    (pill,) = runs(tmp_path / "root")[0].get_tensors("model/addmm", 0, "DebugNumericSummary")
    assert pill.shape == (16,)


def test_a_pattern_that_matches_nothing_gives_a_run_without_tensors_and_a_warning(tmp_path, caplog):
    """C23, X15."""
    with dumping(tmp_path / "root", lambda *_: WatchOptions(node_name_regex_allowlist="nowhere/")) as session:
        session.run("loss")
    (dump,) = runs(tmp_path / "root")
    assert dump.size == 0
    assert dump.nodes()
    assert "no node matched" in caplog.text


def test_mistakes_in_a_watch_fn_reach_the_caller_before_the_step_runs(tmp_path):
    with pytest.raises(TypeError, match="watch_fn must be WatchOptions, or a function"):
        dumping(tmp_path / "a", "DebugIdentity")
    session = linear_session()
    with pytest.raises(InvalidArgumentError, match="DebugIdentitee"):
        dumping(tmp_path / "b", lambda *_: WatchOptions("DebugIdentitee"), sess=session).run("loss")
    with pytest.raises(TypeError, match="watch_fn must return"):
        dumping(tmp_path / "c", lambda *_: 7, sess=session).run("loss")
    assert session.global_step == 0


def test_only_filtered_threads_are_dumped(tmp_path):
    """C9: one directory only."""
    session = dumping(tmp_path / "root", None, "main-.*")
    for name in ("main-1", "side-1"):
        thread = threading.Thread(target=session.run, args=("loss",), name=name)
        thread.start()
        thread.join()
    session.flush()
    assert len(runs(tmp_path / "root")) == 1


def test_concurrent_runs_get_directories_of_their_own(tmp_path):
    """C25, E32."""
    sessions = [tt.torch.Session(lambda x: {"y": x * 2}) for _ in range(2)]
    session = dumping(tmp_path / "root", sess=sessions[0])
    threads = [
        threading.Thread(target=lambda: [session.run("y", {"x": X}) for _ in range(10)]) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.flush()
    dumps = runs(tmp_path / "root")
    assert sorted(dump.dump_root.name.rpartition("_")[2] for dump in dumps) == sorted(map(str, range(30)))
    assert {dump.counts["written"] for dump in dumps} == {2}


def test_a_run_that_never_began_leaves_no_directory(tmp_path):
    """A name that does not exist; and an engine that, reading state only, opens no URL."""
    session = dumping(tmp_path / "root")
    session.run("loss")
    with pytest.raises(tt.errors.UnknownTensorError):
        session.run("lost")
    session.close()
    assert len(runs(tmp_path / "root")) == 1
    counter = dumping(tmp_path / "other", sess=CounterSession())
    counter.run("global_step:0")
    counter.close()
    assert runs(tmp_path / "other") == []


# --- errors and limits -----------------------------------------------------------------------------


def test_a_failed_run_is_returned_and_its_dump_is_whole(tmp_path):
    """C12, E31."""
    with dumping(tmp_path / "root", sess=failing_session()) as session:
        assert isinstance(session.run("z", {"x": X}), OpError)
    (dump,) = runs(tmp_path / "root")
    assert {"add:0:DebugIdentity", "mul:0:DebugIdentity"} <= tensors(dump)
    assert "RuntimeError" in dump.error
    assert dump.nodes()


def test_pass_through_operrors(tmp_path):
    with (
        pytest.raises(OpError),
        dumping(tmp_path / "root", sess=failing_session(), pass_through_operrors=True) as session,
    ):
        session.run("z", {"x": X})
    assert len(runs(tmp_path / "root")) == 1


def test_over_the_budget_training_goes_on_and_the_run_says_what_is_missing(tmp_path):
    """D26 without X9."""
    with dumping(tmp_path / "root", budget=Budget(bytes_per_run=40)) as session:
        losses = [session.run("loss") for _ in range(2)]
    plain = linear_session()
    assert losses == [plain.run("loss") for _ in range(2)]
    for dump in runs(tmp_path / "root"):
        assert dump.counts["written_bytes"] < 40
        assert dump.counts["dropped: run budget"] > 0
        assert dump.counts["written"] == dump.size


def test_retention_keeps_what_is_worth_keeping(tmp_path):
    poisoned = torch.full_like(X, float("inf"))
    session = dumping(
        tmp_path / "root", lambda *_: WatchOptions("DebugNumericSummary"),
        sess=tt.torch.Session(lambda x: {"y": x * 2}),
        retention=Retention(when="inf_or_nan", last=1),
    )  # fmt: skip
    for number in range(6):
        session.run("y", {"x": poisoned if number == 4 else X})
    session.close()
    assert [dump.dump_root.name.rpartition("_")[2] for dump in runs(tmp_path / "root")] == ["3", "4"]


def test_runs_that_retention_skips_are_not_watched_at_all(tmp_path):
    session = dumping(tmp_path / "root", retention=Retention(steps={1}))
    for _ in range(3):
        session.run("loss")
    session.close()
    (dump,) = runs(tmp_path / "root")
    assert dump.core_metadata.global_step == 1


def test_a_monitored_session_can_be_wrapped_and_survives_a_preemption(tmp_path):
    lost = iter([False, True, False, False])

    def step(x):
        y = x * 2
        if next(lost):
            raise tt.errors.AbortedError(None, "a peer is gone")
        return {"y": y}

    with tt.MonitoredSession(tt.torch.Session(step)) as monitored:
        with dumping(tmp_path / "root", sess=monitored) as session:
            for _ in range(3):
                assert session.run("y", {"x": X}).tolist() == (X * 2).tolist()
    dumps = runs(tmp_path / "root")
    assert sum(dump.error is None for dump in dumps) == 3
    assert sum("a peer is gone" in (dump.error or "") for dump in dumps) == 1
