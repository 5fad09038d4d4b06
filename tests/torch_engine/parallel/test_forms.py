"""Training in all forms that jobs of several ranks have: the same watched and unwatched, the rank at fault named."""

from __future__ import annotations

import json
import os
import re

import pytest

from tensortap.analyze.facts import facts_of_dump
from tensortap.analyze.neighbours import describe_node
from tensortap.analyze.session import search_session
from tensortap.commands import main
from tensortap.reader import SessionDir
from tests.torch_engine.parallel.ranks import HERE, ranks

SLOW = pytest.mark.skipif(
    not os.environ.get("TENSORTAP_SLOW_TESTS"), reason="set TENSORTAP_SLOW_TESTS=1 to run slow tests"
)
LINE = 1 + next(
    number
    for number, text in enumerate((HERE / "forms.py").read_text().splitlines())
    if text.endswith("# here")
)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=SLOW)])
def test_results_are_the_same_to_the_last_bit_watched_and_unwatched(tmp_path, world):
    expected, _ = ranks("forms.py", tmp_path, world=world)
    got, said = ranks("forms.py", tmp_path, world=world, root=tmp_path / "records")
    forms = [[json.loads(line) for line in lines.splitlines()] for lines in expected]
    assert len(forms[0]) >= 16
    for rank in range(world):
        for one, other in zip(got[rank].splitlines(), expected[rank].splitlines(), strict=True):
            assert json.loads(one) == json.loads(other)
        assert "Traceback" not in said[rank]
    report = search_session(SessionDir(tmp_path / "records"))
    assert report.first_bad is None
    assert report.unread == ()


# How the other rank got it: a part of the op type of the collective.
PLANTED = {
    "ddp": "allreduce",
    "accumulation": "allreduce",
    "local_sgd": "allreduce",
    "fsdp2": "reduce_scatter",
    "tensor_parallel": "all_reduce",
    "pipeline": "recv",
    "pipeline_interleaved": "recv",
    "experts": "alltoall",
}


@pytest.mark.parametrize("form", PLANTED)
def test_the_rank_that_made_a_bad_value_is_named_and_how_it_came_to_the_other(tmp_path, form, capsys):
    _, said = ranks("forms.py", tmp_path, form, "--plant", root=tmp_path / "records")
    report = search_session(SessionDir(tmp_path / "records"))
    found = report.first_bad
    assert found is not None
    (home,) = (each for each in report.reports if found in each.findings)
    lines = {each.source.line for each in home.findings}  # once for each part of a batch
    assert lines == {LINE}, "what came back from the others is no other fault"
    assert (found.rank, found.step, found.node.op_type) == (1, 2, "aten::log")
    assert (found.source.file, found.source.line) == (str(HERE / "forms.py"), LINE)
    assert found.cause.kind == "log-of-negative"
    (arrival,) = found.arrivals
    assert arrival.rank == 0
    if form == "local_sgd":
        assert arrival.run == 4, "averaged after the last step"
    else:
        assert arrival.step == 2
    assert arrival.collective is not None
    assert PLANTED[form] in arrival.words
    assert "rank 1" in arrival.words or "ranks 0, 1" in arrival.words
    assert any("on rank 1" in each for each in said)
    assert not any("on rank 0" in each for each in said)
    if form in ("fsdp2", "tensor_parallel"):
        assert_parts_are_named(tmp_path / "records", capsys)


def assert_parts_are_named(records, capsys):
    """Of a weight that ranks share, all who speak of it say which part they mean."""
    part = "rank 1: rows 8–15 of 16 of model/first/up/weight"
    assert main(["show", str(records), "model/first/up/weight", "--run", "1", "--task", "1"]) == 0
    assert re.search(rf"part: +{part} \(Shard\(0\) on 0=2: 1\)", capsys.readouterr().out)
    # In the run after, what was damaged is an input.
    assert main(["why", str(records), "--run", "3", "--task", "1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    weights = [each for each in told["findings"] if each["node"] == "model/first/up/weight"]
    assert [each["parts"] for each in weights] == [[part]]
    facts = facts_of_dump(SessionDir(records).run(1, task=1))
    shown = describe_node(facts, facts.nodes["model/first/up/weight"])  # as on the page
    assert shown["text"].endswith(part)
