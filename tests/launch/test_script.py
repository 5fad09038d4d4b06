"""The parts of `tensortap run` that know no framework: what is kept, what is news, which rank speaks."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from tensortap.debug.root import Launch, claim_session_root
from tensortap.launch.alarm import Alarm
from tensortap.launch.imports import when_imported
from tensortap.launch.memory import memory_limit
from tensortap.launch.ranks import Voice, default_root
from tensortap.launch.watch import is_sample
from tensortap.records import RECORD_ROW, KeyTable, Record, RecordBatch, RecordKey
from tests.patience import patient

PILL = "DebugNumericSummary"


def batch_of(table, **pills):
    """A batch of health pills, each given by its counts of NaN, negative and positive infinities."""
    rows, data = np.zeros(len(pills), RECORD_ROW), np.zeros((len(pills), 14))
    for place, (name, (nan, negative, positive)) in enumerate(pills.items()):
        key = table.add(RecordKey(name, 0, PILL, "/device:CPU:0", "float64"))
        rows[place] = (key, 1, place, place * 112, 112, (14, 0, 0, 0, 0, 0, 0, 0))
        data[place, [2, 3, 7, 9]] = nan, negative, positive, 5.0
    return RecordBatch(table, rows, data.reshape(-1))


def test_a_kind_of_bad_value_is_news_once_per_tensor():
    alarm, table = Alarm(), KeyTable()
    healthy, masked = (0, 0, 0), (0, 3, 0)
    assert not alarm.rings(batch_of(table, x=healthy, mask=healthy))
    assert alarm.rings(batch_of(table, x=healthy, mask=masked))
    assert not alarm.rings(batch_of(table, x=healthy, mask=masked))
    assert alarm.rings(batch_of(table, x=healthy, mask=(1, 3, 0)))
    assert alarm.rings(batch_of(table, x=(0, 0, 1), mask=masked))


def test_a_condition_of_the_user_is_news_too():
    alarm, table = Alarm(lambda pill: pill[9] > 4), KeyTable()
    assert alarm.rings(batch_of(table, x=(0, 0, 0)))
    assert not alarm.rings(batch_of(table, x=(0, 0, 0)))


def record_of(name, nan, negative, positive):
    """A health pill that came by itself."""
    pill = np.zeros(14)
    pill[[2, 3, 7, 9]] = nan, negative, positive, 5.0
    return Record(name, 0, PILL, "/device:CPU:0", 1, "float64", (14,), pill)


def test_a_record_by_itself_is_listened_to_like_a_batch():
    alarm, table = Alarm(), KeyTable()
    assert not alarm.rings_for(record_of("x", 0, 0, 0))
    assert alarm.rings_for(record_of("x", 0, 2, 0)), "-inf"
    assert not alarm.rings_for(record_of("x", 0, 1, 0))
    assert alarm.rings_for(record_of("x", 1, 0, 0)), "and now a NaN"
    assert not alarm.rings_for(record_of("x", 1, 1, 0)), "both known, though not together"
    assert not alarm.rings(batch_of(table, x=(1, 1, 0))), "whichever way it comes"
    assert alarm.rings(batch_of(table, x=(0, 0, 1)))
    assert not alarm.rings_for(Record("x", 0, "DebugIdentity", "", 1, "float64", (1,), np.array([np.nan])))
    alarm = Alarm(lambda pill: pill[9] > 4)
    assert alarm.rings_for(record_of("x", 0, 0, 0))
    assert not alarm.rings_for(record_of("x", 0, 0, 0))


def test_runs_of_any_length_keep_few_samples():
    kept = [index for index in range(100_000) if is_sample(index)]
    assert kept[:12] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20]
    assert len(kept) == 46


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """The voices of two ranks that have claimed one directory."""
    voices = []
    for rank in range(2):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(rank))
        root = claim_session_root(tmp_path / "dumps")
        voices.append(Voice(root, Launch.of(os.environ)))
    return voices


def test_of_all_ranks_the_first_speaks_and_of_one_every_time(ranks, tmp_path):
    assert [voice.takes("answer") for voice in reversed(ranks)] == [True, False]
    alone = Voice(tmp_path, None)
    assert alone.takes("answer")
    assert alone.takes("answer")


def test_nobody_waits_long_for_a_rank_that_died(ranks):
    first, second = ranks
    first.ends()
    began = time.monotonic()
    first.waits_for_the_others(timeout=0.2)
    assert 0.2 <= time.monotonic() - began < patient(5)
    second.ends()
    began = time.monotonic()
    first.waits_for_the_others(timeout=patient(30))
    assert time.monotonic() - began < patient(5)


def test_a_rank_that_is_restarted_can_claim_and_speak_again(ranks, monkeypatch, tmp_path):
    assert ranks[1].takes("answer")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    root = claim_session_root(tmp_path / "dumps")
    assert Voice(root, Launch.of(os.environ)).takes("answer")


def test_directories_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    first = default_root()
    first.mkdir(parents=True)
    assert default_root() != first
    # Ranks come up at different times, and have one launcher.
    monkeypatch.setenv("WORLD_SIZE", "2")
    shared = default_root()
    shared.mkdir()
    assert default_root() == shared


def test_waiting_for_an_import_and_what_fails_then(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_framework.py").write_text("value = 1")
    done = []
    when_imported("late_framework", lambda: done.append(1))
    assert done == []
    import late_framework

    assert done == [1]
    when_imported("late_framework", lambda: 1 / 0)
    assert "goes on without tensortap" in caplog.text
    assert late_framework.value == 1


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/", {"memory.max": "max"}, None),
        ("0::/", {"memory.max": "2000000"}, 2_000_000),
        ("0::/pod/box", {"pod/box/memory.max": "max", "pod/memory.max": "3000000"}, 3_000_000),
        ("0::/pod/box", {"memory.max": "4000000"}, 4_000_000),  # the path is that of the host
        ("4:memory:/job\n0::/", {"memory/job/memory.limit_in_bytes": "5000000"}, 5_000_000),
        ("4:cpu,memory:/job", {"memory/memory.limit_in_bytes": "6000000"}, 6_000_000),
        ("4:memory:/job", {"memory/job/memory.limit_in_bytes": str(2**63 - 4096)}, None),  # no limit
        ("4:cpu:/job", {}, None),
    ],
)
def test_memory_is_what_the_container_allows(tmp_path, cgroup, files, limit):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_limit(tmp_path) == (limit or machine)
    assert memory_limit(tmp_path / "nothing") == machine
