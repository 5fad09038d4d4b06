"""Which copies of ranks are apart, and what is said about it."""

from __future__ import annotations

import itertools

from tensortap.analyze.copies import compare_copies
from tensortap.debug.copies import CopyChecks
from tensortap.records.copies import Copied, CopyCheck, RankChecks
from tensortap.report.copies import copies_sentences
from tensortap.sink.queue import shared_queue
from tensortap.store.copies import CopiesFile, read_copies
from tests.patience import patient

WEIGHT = Copied("parameter", "model/weight")
GRADIENT = Copied("gradient", "model/weight")


def rank(number, *sums, steps=None, own=0.0):
    """A rank with these checksums after one step each."""
    steps = range(len(sums)) if steps is None else steps
    checks = [CopyCheck(step, 0.0, 1, 0.1, own, held) for step, held in zip(steps, sums, strict=True)]
    return RankChecks(number, 2, f"host{number}", number, checks)


def test_ranks_that_average_now_and_then_are_no_alarm():
    ours = [{WEIGHT: each} for each in (1, 2, 9, 3, 4, 9, 5)]
    theirs = [{WEIGHT: each} for each in (1, 6, 9, 7, 8, 9, 6)]
    found = compare_copies([rank(0, *ours), rank(1, *theirs)])
    assert found.first is None
    assert [each.state for each in found.apart] == ["periodic"]
    assert "come together now and then" in " ".join(copies_sentences(found))


def test_parts_of_a_tensor_are_compared_with_the_same_part_only():
    upper, lower = (Copied("parameter", "model/weight", part, True) for part in ("[0]+[4]", "[4]+[4]"))
    found = compare_copies([rank(0, {upper: 1}), rank(1, {lower: 2})])
    assert (found.compared, found.alone, found.apart) == (0, 2, [])
    assert "each has its own part" in " ".join(copies_sentences(found))
    assert compare_copies([rank(0, {upper: 1}), rank(1, {upper: 2})]).first is not None


def test_ranks_that_look_after_other_steps_are_compared_where_they_meet():
    often = rank(0, *({WEIGHT: step if step < 6 else 99} for step in range(9)))
    seldom = rank(1, *({WEIGHT: step} for step in (0, 4, 8)), steps=(0, 4, 8))
    first = compare_copies([often, seldom]).first
    assert (first.last_equal, first.step) == (4, 8)
    assert first.when == "since one of steps 5 to 8"


def test_parameters_that_never_were_the_same_though_their_gradients_are():
    found = compare_copies([rank(0, {GRADIENT: 5, WEIGHT: 1}), rank(1, {GRADIENT: 5, WEIGHT: 2})])
    assert found.first.copied.name == "model/weight"
    assert "rank 0: 0, rank 1: 1" in found.cause
    alone = compare_copies([rank(0, {GRADIENT: 5, WEIGHT: 1}), rank(1, {GRADIENT: 6, WEIGHT: 2})])
    assert alone.first is None, "stages of a pipeline, experts: each rank has its own"


def test_a_slow_rank_is_one_that_is_slow_nearly_always():
    held = [{WEIGHT: 0}] * 14
    found = compare_copies([rank(0, *held, own=0.02), rank(1, *held, own=0.02), rank(2, *held, own=0.06)])
    assert [each.rank for each in found.stragglers] == [2]
    assert "host2" in found.stragglers[0].sentence
    even = compare_copies([rank(0, *held, own=0.02), rank(1, *held, own=0.025)])
    assert even.stragglers == []


def test_what_was_written_comes_back_and_a_broken_end_is_left_out(tmp_path):
    file = CopiesFile(tmp_path, 1, 2, "here", 17)
    file.write(CopyCheck(0, 1.5, 1, 0.25, 0.125, {WEIGHT: 0xFFFFFFFF, GRADIENT: 3}))
    file.write(CopyCheck(1, 2.5, 1, 0.25, 0.125, {WEIGHT: 4}))
    file.close()
    (path,) = (tmp_path / "copies").iterdir()
    with path.open("ab") as end:
        end.write(b'{"step":2,"at')
    ((found,), notices) = read_copies(tmp_path)
    assert notices == []
    assert (found.rank, found.world, found.host, found.seed) == (1, 2, "here", 17)
    assert [each.sums for each in found.checks] == [{WEIGHT: 0xFFFFFFFF, GRADIENT: 3}, {WEIGHT: 4}]
    path.write_text("no such thing\n")
    assert "rank_1" in read_copies(tmp_path)[1][0]


def test_checks_take_a_small_share_of_the_time_and_ranks_meet_all_the_same(tmp_path):
    clock = [0.0]
    checks = CopyChecks(tmp_path, share=0.02, clock=lambda: clock[0])

    def sums():
        clock[0] += 0.1  # as long as a step
        return {WEIGHT: 1}

    taken = []
    for step in range(1000):
        clock[0] += 0.1
        if checks.is_due(step):
            taken.append(step)
            checks.take(step, 0, 2, 0, sums)
    shared_queue().drain(patient(30))
    checks.close()
    late = [step for step in taken if step > 200]
    assert len(late) <= 800 * 0.03
    distances = {b - a for a, b in itertools.pairwise(late)}
    assert all(step % min(distances) == 0 for step in late)
    assert min(distances) & (min(distances) - 1) == 0, (
        "a power of two, so that of two distances one fits the other"
    )
