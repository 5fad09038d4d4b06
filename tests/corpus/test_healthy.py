"""No alarm for programs in which nothing is wrong."""

from __future__ import annotations

import pytest
import torch

from tensortap.analyze.checks import check_session
from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests.corpus.architectures import ARCHITECTURES
from tests.corpus.healthy import SLOW, STEPS
from tests.corpus.ordinary import ORDINARY
from tests.corpus.training import run_as_loop, run_as_session

pytestmark = [
    # One of the models is scripted in part.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

CHOSEN = [each for each in ARCHITECTURES + ORDINARY if SLOW or not each.is_slow]
WAYS = [("native", run_as_session), *([("dispatch", run_as_loop)] if SLOW else [])]


@pytest.mark.parametrize(("interceptor", "run"), WAYS)
@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_no_alarm(case, interceptor, run, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", interceptor)
    torch.manual_seed(0)
    results = run(case.build(), tmp_path)
    assert len(results) == STEPS
    assert all(torch.isfinite(each["loss"]) for each in results)
    session = SessionDir(tmp_path)
    report = search_session(session)
    assert report.first_bad is None, report.first_bad.cause.sentence
    assert not [(each.key, each.sentence) for each in check_session(session) if each.is_sure]
    # Silence means something only if everything was looked at.
    assert len(session.runs) == STEPS
    names = {datum.node_name for datum in session.runs[-1].open(validate=False).dumped_tensor_data}
    assert any(name.startswith("gradients/") for name in names)
    assert any(name.startswith("optimizer/") for name in names)
    assert any(name.endswith("/weight") for name in names)


def test_a_step_that_a_scaler_skips_is_told(tmp_path):
    (case,) = (each for each in ORDINARY if each.name == "gradient_scaler_that_skips_a_step")
    torch.manual_seed(0)
    run_as_session(case.build(), tmp_path)
    report = search_session(SessionDir(tmp_path))
    assert any("gradient scaler skipped this step" in each for each in report.notices)
    assert any(each.phase == "backward" for each in report.reports[0].contained)


def test_there_are_enough_of_them():
    kinds = {each.name.partition("-")[0] for each in CHOSEN if each in ARCHITECTURES}
    assert len(kinds) >= 20
    assert len(CHOSEN) >= 30
