"""Models under torch.compile: seen inside when watched, said loudly, and compiled afterwards as before."""

from __future__ import annotations

import logging

import pytest
import torch

import tensortap as tt
from tests.torch_engine.zoo import make_compiled, make_compiled_function

pytestmark = pytest.mark.parametrize("make", [make_compiled, make_compiled_function])


def runs_compiled(case, session, run):
    """Whether an ordinary run of the step executes compiled code, as the profiler sees it."""
    with torch.profiler.profile() as profile:
        session.run(None, case.batch(run))
    return any("Torch-Compiled Region" in event.key for event in profile.key_averages())


def test_a_watched_run_sees_inside_and_later_runs_are_compiled_again(make, caplog):
    torch._dynamo.reset()
    case = make()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    session.run(None, case.batch(0))
    assert runs_compiled(case, session, 1)
    compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    seen = []
    with caplog.at_level(logging.WARNING, "tensortap"):
        for run in (2, 3):
            session.run(
                None, case.batch(run), options=tt.RunOptions(taps=[lambda n, s, t: seen.append(n.name)])
            )
    assert "model/0/addmm" in seen
    assert any(name.startswith("gradients/model/0/") for name in seen)
    assert caplog.text.count("compiled by torch.compile") == 1

    assert runs_compiled(case, session, 4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compilations, "nothing is compiled anew"


def test_the_first_watched_run_does_not_keep_the_program_eager(make):
    torch._dynamo.reset()
    case = make()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    session.run(None, case.batch(0), options=tt.RunOptions(taps=[lambda n, s, t: None]))
    session.run(None, case.batch(1))
    assert runs_compiled(case, session, 2)


def test_training_through_watched_runs_stays_close_to_the_compiled_one(make):
    losses = []
    for watch in (False, True):
        torch._dynamo.reset()
        case = make()
        session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
        options = tt.RunOptions(taps=[lambda n, s, t: None]) if watch else None
        losses.append([float(session.run("loss", case.batch(run), options)) for run in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
