"""No alarm for programs in which nothing is wrong."""

from __future__ import annotations

import pytest
import torch

from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests.corpus.healthy import HEALTHY, SLOW, STEPS
from tests.corpus.training import run_as_session

pytestmark = [
    # One of the models is scripted in part.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]


@pytest.mark.parametrize(
    "case", [each for each in HEALTHY if SLOW or not each.is_slow], ids=lambda case: case.name
)
def test_no_alarm(case, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "native")
    torch.manual_seed(0)
    results = run_as_session(case.build(), tmp_path)
    assert len(results) == STEPS
    assert all(torch.isfinite(each["loss"]) for each in results)
    session = SessionDir(tmp_path)
    report = search_session(session)
    assert report.first_bad is None, report.first_bad.cause.sentence
    # Silence means something only if everything was looked at: three phases of a step, or more.
    assert len(session.runs) == STEPS
    names = {datum.node_name for datum in session.runs[-1].open(validate=False).dumped_tensor_data}
    assert any(name.startswith("gradients/") for name in names)
    assert any(name.startswith("optimizer/") for name in names)
    assert any(name.endswith(("weight", "bias")) and "/" in name for name in names)
