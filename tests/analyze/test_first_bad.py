"""The right node, module, line and cause for every planted fault; silence for healthy programs."""

from __future__ import annotations

import pytest

from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests.analyze.planted import HEALTHY, PLANTS, train


@pytest.mark.parametrize("case", PLANTS, ids=lambda case: case.name)
def test_a_planted_fault_is_found(case, tmp_path):
    found = search_session(SessionDir(train(case, tmp_path))).first_bad
    assert found is not None
    if case.node is not None:
        assert found.node.name == case.node
        assert found.run == case.run
        assert found.phase == case.phase
        assert found.module == case.module
    assert found.cause.kind == case.kind, found.cause
    if case.line is not None:
        assert found.source is not None
        assert found.source.line == case.line
        assert found.source.file == __file__.replace("test_first_bad", "planted")
        assert found.source_text.endswith("# here")
    assert found.is_certain


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_program_is_left_in_peace(case, tmp_path):
    report = search_session(SessionDir(train(case, tmp_path)))
    assert report.first_bad is None
