"""A rank that goes its own way, with nothing bad in it: found by comparing checksums that each rank has left."""

from __future__ import annotations

import json

import pytest

from tensortap.analyze.copies import compare_copies
from tensortap.commands import main
from tensortap.store.copies import read_copies
from tests.torch_engine.parallel.ranks import ranks


@pytest.fixture
def compared(tmp_path):
    def compare(way, world=3):
        _, said = ranks("astray.py", tmp_path, way, world=world, root=tmp_path / "records")
        checks, notices = read_copies(tmp_path / "records")
        assert notices == []
        found = compare_copies(checks)
        assert found.ranks == tuple(range(world))
        assert len(found.steps) >= 8
        return found, "\n".join(said)

    return compare


def test_a_flipped_bit_of_one_rank(compared, tmp_path, capsys):
    found, said = compared("bit")
    first = found.first
    assert first is not None
    assert (first.copied.kind, first.copied.name) == ("parameter", "network/module/3/weight")
    assert first.odd_ranks == (2,)
    assert first.last_equal < 6 <= first.step
    assert "flipped bit" in found.cause
    assert "network/module/3/weight has diverged" in said
    assert main(["ranks", str(tmp_path / "records"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["copies"]
    assert told["first"]["odd_ranks"] == [2]


def test_an_all_reduce_that_was_left_out(compared):
    found, said = compared("skipped", world=2)
    first = found.first
    assert first is not None
    assert first.copied.name == "network/module/0/weight"
    assert first.last_equal < 6 <= first.step
    assert "all-reduce was left out" in found.cause
    assert "has diverged" in said


def test_groups_of_ranks_that_train_models_of_their_own(compared):
    found, said = compared("groups")
    assert found.first is None
    weights = {each.copied.name for each in found.apart if each.copied.kind != "buffer"}
    assert not weights, "what ranks 1 and 2 share is the same; rank 0 shares nothing"
    assert found.compared >= 12
    assert "not the same on all ranks" not in said


def test_ranks_that_began_with_other_seeds(compared):
    found, _ = compared("seeds", world=2)
    first = found.first
    assert first is not None
    assert (first.state, first.copied.kind) == ("different", "parameter")
    assert found.seeds == {0: 100, 1: 101}
    assert "seeds differ" in found.cause


def test_a_slow_rank_and_buffers_of_each_ranks_own(compared, tmp_path, capsys):
    found, _ = compared("slow")
    assert found.first is None, "buffers that each rank has for itself are no alarm"
    assert [each.rank for each in found.stragglers] == [2]
    assert {each.copied.kind for each in found.apart} == {"buffer"}
    assert main(["ranks", str(tmp_path / "records")]) == 0
    told = capsys.readouterr().out
    assert "Rank 2" in told
    assert "network/module/1/running_mean" in told
    assert "diverged first" not in told, "what ranks share is the same: what else they do may differ"
