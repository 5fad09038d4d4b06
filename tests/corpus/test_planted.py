"""The right step, phase, node, module, line and cause for every planted fault."""

from __future__ import annotations

import os

import pytest
import torch

from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests.corpus import planted
from tests.corpus.planted import PLANTS
from tests.corpus.training import run_as_loop, run_as_session

pytestmark = [
    # PyTorch warns of the fault itself, in one of the programs.
    pytest.mark.filterwarnings("ignore:std.+degrees of freedom:UserWarning"),
    # torch.compile itself uses what PyTorch calls deprecated.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]

WAYS = [
    ("native", run_as_session),
    ("dispatch", run_as_loop),
    *(
        [("native", run_as_loop), ("dispatch", run_as_session)]
        if os.environ.get("TENSORTAP_SLOW_TESTS")
        else []
    ),
]


@pytest.mark.parametrize(("interceptor", "run"), WAYS)
@pytest.mark.parametrize("case", PLANTS, ids=lambda case: case.name)
def test_a_planted_fault_is_found(case, interceptor, run, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", interceptor)
    torch.manual_seed(0)
    run(case.build(), tmp_path)
    found = search_session(SessionDir(tmp_path)).first_bad
    assert found is not None, "nothing was found"
    assert (found.step, found.rank, found.phase) == (case.step, 0, case.phase)
    assert found.module == case.module
    assert found.cause.kind == case.kind, found.cause.sentence
    assert case.says in found.cause.sentence
    assert found.is_certain
    if case.phase != "input" or run is run_as_session:  # what a loop is given has no name
        assert (found.node.name, found.node.op_type) == (case.node, case.op_type)
    if case.line is not None:
        assert found.source is not None
        assert (found.source.file, found.source.line) == (planted.__file__, case.line)
        assert found.source_text.endswith("# here")
    if case.reached is not None:
        assert any(case.reached in each for each in found.reached), found.reached


def test_there_are_enough_of_them():
    assert len(PLANTS) >= 25
    assert {each.phase for each in PLANTS} == {"forward", "backward", "optimizer", "input", "parameter"}
