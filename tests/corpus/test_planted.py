"""The right step, phase, node, module, line and cause for every planted fault."""

from __future__ import annotations

import inspect
import itertools
import os
from contextlib import suppress

import pytest
import torch

from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests.corpus.plants import PLANTS
from tests.corpus.training import run_as_loop, run_as_session

pytestmark = [
    # PyTorch warns of the fault itself, in one of the programs.
    pytest.mark.filterwarnings("ignore:std.+degrees of freedom:UserWarning"),
    # And so does its detection of anomalies, in another.
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:Error detected in SqrtBackward:UserWarning"),
    # torch.compile itself uses what PyTorch calls deprecated.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]

WAYS = [("native", run_as_session, 8), ("dispatch", run_as_loop, 0)]
"""What observes, how the program is written, and how many bad values are kept beside the pills of everything."""

if os.environ.get("TENSORTAP_SLOW_TESTS"):
    WAYS = list(itertools.product(("native", "dispatch"), (run_as_session, run_as_loop), (0, 8)))


@pytest.mark.parametrize(("interceptor", "run", "keep_bad"), WAYS)
@pytest.mark.parametrize("case", PLANTS, ids=lambda case: case.name)
def test_a_planted_fault_is_found(case, interceptor, run, keep_bad, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", interceptor)
    torch.manual_seed(0)
    # Some programs see for themselves that something is wrong, and end.
    with suppress(FloatingPointError, RuntimeError):
        run(case.build(), tmp_path, keep_bad)
    found = search_session(SessionDir(tmp_path)).first_bad
    assert found is not None, "nothing was found"
    assert (found.step, found.rank, found.phase) == (case.step, 0, case.phase)
    assert found.cause.kind == case.kind, found.cause.sentence
    assert case.says in found.cause.sentence
    assert found.is_certain
    if case.phase != "input" or run is run_as_session:  # what a loop is given has no name
        assert (found.node.name, found.node.op_type, found.module) == (case.node, case.op_type, case.module)
    if case.line is not None:
        assert found.source is not None
        assert (found.source.file, found.source.line) == (inspect.getsourcefile(case.build), case.line)
        assert found.source_text.endswith("# here")
    if case.reached is not None:
        assert any(case.reached in each for each in found.reached), found.reached


def test_there_are_enough_of_them():
    assert len(PLANTS) >= 25
    assert {each.phase for each in PLANTS} == {"forward", "backward", "optimizer", "input", "parameter"}
