"""What is known of the processes behind a session: states told apart, old and damaged directories opened."""

from __future__ import annotations

import inspect
import json
import os
import time
from dataclasses import replace

import pytest

from tensortap.analyze.coverage import Coverage, RankState
from tensortap.commands import main
from tensortap.debug.presence import Presence
from tensortap.reader import SessionDir
from tensortap.reader.coverage import coverage_of
from tensortap.records import RunInfo
from tensortap.store import SessionStore
from tensortap.store.processes import ProcessFacts, ProcessFile, UnwatchedChild, read_processes
from tensortap.store.system import Status, machine, status_of

ALIVE = ProcessFacts(machine=machine(), pid=17, start=99, began=900, seen=1000, since=1000, run=4)


@pytest.mark.parametrize(
    ("facts", "status", "state"),
    [
        (replace(ALIVE, state="ended"), None, "ended"),
        (replace(ALIVE, state="failed"), None, "failed"),
        (ALIVE, Status("R", 1, 99), "running"),
        (ALIVE, None, "died"),
        (ALIVE, Status("Z", 1, 99), "died"),
        (ALIVE, Status("R", 1, 98), "died"),  # its number belongs to another process by now
        (ALIVE, Status("T", 1, 99), "stopped"),
        (replace(ALIVE, since=900), Status("S", 1, 99), "hangs"),
        (replace(ALIVE, seen=980), Status("S", 1, 99), "silent"),
        (replace(ALIVE, machine="another"), None, "running"),
        (replace(ALIVE, machine="another", since=900), None, "hangs"),
        (replace(ALIVE, machine="another", seen=900), None, "lost"),
    ],
)
def test_states(facts, status, state):
    (found,) = coverage_of([facts], now=1001, status=lambda pid: status).ranks
    assert found.state == state
    assert found.is_trouble == (state not in ("ended", "running"))
    assert found.sentence


COLLECTIVE = "torch.distributed.distributed_c10d.all_reduce"


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        # One is busy with something else, and one was killed.
        ([(4, COLLECTIVE), (4, "time.sleep")], "Rank 1 has not arrived where rank 0 waits: run 4, executing"),
        ([(4, COLLECTIVE), None, (4, COLLECTIVE)], "Rank 1 has not arrived where ranks 0 and 2 wait: run 4,"),
        # All wait, but one is a run behind.
        (
            [(4, COLLECTIVE), (4, "torch.distributed.distributed_c10d.recv"), (4, COLLECTIVE)],
            "Rank 1 has not arrived where ranks 0 and 2 wait: run 4, executing",
        ),
        ([(4, COLLECTIVE), (5, COLLECTIVE)], "Rank 0 has not arrived where rank 1 waits: run 5"),
        ([(4, COLLECTIVE), (4, COLLECTIVE)], ""),
        ([(4, ""), (4, "")], ""),
    ],
)
def test_of_ranks_that_stand_still_those_are_named_that_others_wait_for(ranks, told):
    facts = [
        replace(ALIVE, rank=rank, world=len(ranks), since=900, machine="another", run=each[0], call=each[1])
        if each
        else replace(ALIVE, rank=rank, world=len(ranks))
        for rank, each in enumerate(ranks)
    ]
    found = coverage_of(facts, now=1001, status=lambda pid: None)
    assert found.absent_sentence.startswith(told)
    assert bool(found.absent_sentence) == bool(told)


def test_a_rank_that_was_started_again_is_what_it_became():
    first = replace(ALIVE, rank=1, seen_runs=5)
    again = replace(ALIVE, rank=1, restart=1, state="ended")
    found = coverage_of(
        [again, first, replace(ALIVE, state="ended", world=3)], now=1001, status=lambda pid: None
    )
    assert [each.state for each in found.ranks] == ["ended", "ended"]
    assert found.missing == (2,)
    assert found.sentences == ("Rank 2 of 3 was not watched here.",)
    (before,) = found.restarts
    assert before.startswith("Rank 1 was started again: its attempt 1 did not finish")
    assert before.endswith("it was at run 4.")


def test_the_one_that_stood_still_first_is_named_first():
    ranks = tuple(RankState(rank, "hangs", seen=1000, still_secs=90 + rank) for rank in range(3))
    assert [each.rank for each in Coverage(ranks, world=3).troubled] == [2, 1, 0]


def test_the_rank_that_a_launcher_killed_while_it_waited_comes_after_the_one_that_was_killed():
    ranks = (
        RankState(0, "died", seen=1000, still_secs=9, call=COLLECTIVE),
        RankState(1, "died", seen=1000, still_secs=1, call="time.sleep"),
    )
    assert [each.rank for each in Coverage(ranks, world=2).troubled] == [1, 0]


def test_a_process_says_what_becomes_of_it(tmp_path):
    presence = Presence(tmp_path, world_size=lambda: 2, beat_secs=0.01)
    presence.begin_run(3, 30, 1)
    deadline = time.monotonic() + 60
    while read_processes(tmp_path)[0][0].run != 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    (facts,), _ = read_processes(tmp_path)
    assert (facts.pid, facts.start) == (os.getpid(), status_of(os.getpid()).start)
    assert (facts.rank, facts.world, facts.run, facts.step) == (1, 2, 3, 30)
    assert facts.file == __file__
    if (child := os.fork()) == 0:
        presence.end()  # a copy has nothing to say
        os._exit(0)
    os.waitpid(child, 0)
    assert read_processes(tmp_path)[0][0].state == "running"
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("")
    presence.end(raised.value)
    presence.end()
    ((failed,), _) = read_processes(tmp_path)
    assert (failed.state, failed.error) == (
        "failed",
        "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    )
    assert (failed.file, failed.line) == (__file__, line), "where it was raised, not where it has come to"
    assert failed.call == "json.decoder.JSONDecoder.raw_decode"
    presence.begin_run(4, 40)  # a hook that serves a second session
    assert coverage_of(read_processes(tmp_path)[0]).ranks[0].state == "running"
    presence.end()
    assert coverage_of(read_processes(tmp_path)[0]).ranks[0].state == "ended"


def test_texts_of_any_length_and_kind_fit(tmp_path):
    long = "🏖\0\n" * 5000
    children = tuple(UnwatchedChild(number, command=long) for number in range(100))
    facts = ProcessFacts(
        error=long, file=long, function=long, call=long, node=long, children=children, unwatched=100
    )
    with ProcessFile(tmp_path, facts):
        (found,), notices = read_processes(tmp_path)
    assert notices == []
    assert long.startswith(found.error)
    assert found.unwatched == 100


def session_of(root, *, finished):
    with SessionStore(root) as store, store.new_run(RunInfo(0, 0, 17)) as run:
        if finished:
            run.finish({}, {})
    return root


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"rank": "one"}', '{"children": 3}', '{"children": [3]}', "x" * 9999]
)
def test_damage_is_noted_and_the_session_is_still_read(tmp_path, content):
    session_of(tmp_path, finished=True)
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / "1-2.json").write_text(content)
    session = SessionDir(tmp_path)
    assert session.coverage().is_complete
    assert len(session.notices) == 1
    assert main(["ls", str(tmp_path)]) == 0


def test_directories_of_earlier_versions_tell_by_their_last_run(tmp_path):
    assert SessionDir(session_of(tmp_path / "done", finished=True)).coverage().is_complete
    torn = SessionDir(session_of(tmp_path / "torn", finished=False))
    assert torn.coverage().is_complete, "it may still be written"
    for path in (tmp_path / "torn" / "run_17_0").iterdir():
        os.utime(path, (1000, 1000))
    (state,) = torn.coverage().troubled
    assert (state.state, state.run) == ("unfinished", 0)
