"""Which runs are kept."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tensortap.debug.run_directories import RunDirectories
from tensortap.reader.session_dir import SessionDir
from tensortap.sink.budget import Budget
from tensortap.sink.filters import has_inf_or_nan
from tensortap.sink.retention import Retention
from tests.sink.sample import play, record, watch_all

GOOD, BAD = np.ones(4, np.float32), np.array([1, np.inf], np.float32)


def session(root, retention, values, op="DebugIdentity", errors=()):
    """Runs with one value each; the numbers of those that are on disk afterwards."""
    dumper = RunDirectories(root, retention=retention)
    for number, value in enumerate(values):
        if not dumper.skips(SimpleNamespace(global_step=100 + number)):
            url = dumper.prepare(None, None)
            play({"x": value}, watch_all(url, op), error="broken" if number in errors else None)
    dumper.close()
    return kept(root)


def kept(root):
    return sorted(int(run.name.rpartition("_")[2]) for run in SessionDir(root))


def test_all_runs_are_kept_by_default(tmp_path):
    assert session(tmp_path / "r", None, [GOOD] * 3) == [0, 1, 2]


def test_chosen_steps_and_every_so_many_runs(tmp_path):
    assert session(tmp_path / "a", Retention(steps={101, 103}), [GOOD] * 5) == [1, 3]
    assert session(tmp_path / "b", Retention(every=3), [GOOD] * 7) == [0, 3, 6]
    assert session(tmp_path / "c", Retention(steps=range(101, 102), every=4), [GOOD] * 6) == [0, 1, 4]


@pytest.mark.parametrize("hold", ["memory", "disk"])
@pytest.mark.parametrize("op", ["DebugIdentity", "DebugNumericSummary"])
def test_only_bad_runs_and_those_before_them(tmp_path, hold, op):
    values = [GOOD, GOOD, GOOD, BAD, GOOD, GOOD, GOOD, GOOD, BAD, BAD, GOOD]
    assert session(tmp_path / "a", Retention(when="inf_or_nan", hold=hold), values, op) == [3, 8, 9]
    retention = Retention(when="inf_or_nan", last=2, hold=hold)
    assert session(tmp_path / "b", retention, values, op) == [1, 2, 3, 6, 7, 8, 9]
    run = SessionDir(tmp_path / "b").run(1)
    assert run.size == 1, "runs that waited are whole"
    assert run.nodes() == ["x"]
    assert run.counts["written"] == 1


def test_runs_that_wait_in_memory_leave_no_trace_on_disk(tmp_path):
    assert session(tmp_path / "r", Retention(when="inf_or_nan", last=5), [GOOD] * 20) == []
    assert not list((tmp_path / "r").glob("run_*"))


def test_runs_that_wait_on_disk_are_there_until_the_end(tmp_path):
    dumper = RunDirectories(tmp_path / "r", retention=Retention(when="inf_or_nan", last=2, hold="disk"))
    for _ in range(5):
        play({"x": GOOD}, watch_all(dumper.prepare(None, None)))
    dumper.flush()
    assert kept(tmp_path / "r") == [3, 4], "as a crash would leave them"
    dumper.close()
    assert kept(tmp_path / "r") == []


def test_without_a_filter_the_last_runs_stay(tmp_path):
    assert session(tmp_path / "r", Retention(last=3), [GOOD] * 10) == [7, 8, 9]


def test_a_run_that_fails_counts_as_bad(tmp_path):
    retention = Retention(when="inf_or_nan", last=1)
    assert session(tmp_path / "a", retention, [GOOD] * 6, errors={3}) == [2, 3]
    retention = Retention(when="inf_or_nan", last=1, on_error=False)
    assert session(tmp_path / "b", retention, [GOOD] * 6, errors={3}) == []


def test_a_filter_of_ones_own_and_one_that_fails(tmp_path, caplog):
    values = [GOOD, 5 * GOOD, GOOD]
    large = Retention(when=lambda record: np.frombuffer(record.data, np.float32).max() > 4)
    assert session(tmp_path / "a", large, values) == [1]
    assert session(tmp_path / "b", Retention(when=lambda record: 1 / 0), values) == []
    assert caplog.text.count("retention filter failed") == 1


def test_memory_is_bounded_and_the_oldest_runs_go_first(tmp_path):
    values = [np.zeros(1000, np.float32)] * 9 + [BAD]
    retention = Retention(when="inf_or_nan", last=9, memory_bytes=10_000)
    assert session(tmp_path / "a", retention, values) == [7, 8, 9]
    retention = Retention(when="inf_or_nan", memory_bytes=1000)
    dumper = RunDirectories(tmp_path / "b", retention=retention)
    play({"large": values[0], "bad": BAD}, watch_all(dumper.prepare(None, None)))
    dumper.close()
    run = SessionDir(tmp_path / "b").run(0)
    assert (run.counts["written"], run.counts["dropped: ring memory"]) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [{"every": 0}, {"last": -1}, {"hold": "tape"}, {"when": "nan"}, {"steps": 3}],
    ids=str,
)
def test_mistakes_are_refused_when_they_are_made(wrong):
    with pytest.raises((ValueError, TypeError)):
        Retention(**wrong)


@pytest.mark.parametrize(
    ("value", "op", "bad"),
    [
        ([1.0, np.nan], "DebugIdentity", True),
        ([-np.inf], "DebugIdentity", True),
        ([1.0], "DebugIdentity", False),
        ([], "DebugIdentity", False),
        ([1, 2], "DebugIdentity", False),
        ([True], "DebugIdentity", False),
        ([1j * np.inf], "DebugIdentity", True),
        (np.array([np.inf], np.float16), "DebugIdentity", True),
        ([1, 6, 0, 0, 1, 1, 1, 0, -1, 1, 0, 1, 1, 1], "DebugNumericSummary", False),
        ([1, 6, 1, 0, 1, 1, 1, 0, -1, 1, 0, 1, 1, 1], "DebugNumericSummary", True),
        ([1, 6, 0, 1, 1, 1, 1, 0, -1, 1, 0, 1, 1, 1], "DebugNumericSummary", True),
        ([1, 6, 0, 0, 1, 1, 1, 1, -1, 1, 0, 1, 1, 1], "DebugNumericSummary", True),
        ([3], "DebugNanCount", True),
        ([0], "DebugNanCount", False),
        (np.full(16, 255, np.uint8), "DebugHash", False),
        ([b"nan"], "DebugIdentity", False),
    ],
)
def test_what_counts_as_inf_or_nan(value, op, bad):
    """E27, from whatever record there is."""
    assert has_inf_or_nan(record("x", value, op)) is bad


@pytest.mark.parametrize(
    "retention", [Retention(last=1), Retention(when="inf_or_nan", last=1, hold="disk")], ids=["last", "when"]
)
def test_runs_that_are_not_kept_cost_nothing_of_the_budget(tmp_path, retention):
    budget = Budget(bytes_per_session=100)  # room for six runs of 16 bytes; two are there at a time
    dumper = RunDirectories(tmp_path / "r", retention=retention, budget=budget)
    for _ in range(20):
        play({"x": GOOD}, watch_all(dumper.prepare(None, None)))
    play({"x": BAD}, watch_all(dumper.prepare(None, None)))
    dumper.close()
    assert kept(tmp_path / "r") == ([20] if retention.when is None else [19, 20])
    for run in (ref.open() for ref in SessionDir(tmp_path / "r").runs):
        assert run.counts["written"] == 1
        assert not run.counts.get("dropped")
