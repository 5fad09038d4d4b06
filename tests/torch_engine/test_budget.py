"""Watching only as much as a budget of time allows: nothing bad passes unnoticed."""

from __future__ import annotations

import logging
import random
import sys

import pytest
import torch
from torch import nn

from tensortap.analyze.session import search_session
from tensortap.debug.script.watch import ScriptOptions, ScriptWatch
from tensortap.debug.time_budget import TimeBudget
from tensortap.engines.torch.glance import first_bad
from tensortap.engines.torch.script import follow
from tensortap.reader import SessionDir
from tensortap.watch.options import WatchOptions

pytestmark = pytest.mark.usefixtures("interceptor", "no_backend")

STEPS = 60


@pytest.fixture
def no_backend(monkeypatch):
    """A program that has loaded our backend of torch.compile is followed by its optimizers only."""
    monkeypatch.delitem(sys.modules, "tensortap.engines.torch.compiled", raising=False)


class EveryThird(TimeBudget):
    """Watches by count instead of by clock, so that a test knows what to expect."""

    def wants_next(self):
        return self.bad is not None or self.watched < 2 or (self.watched + self.left_out) % 3 == 0


def train(root, planted, optimizer_class=torch.optim.Adam):
    """Train for some steps, in one of which the logarithm of a negative number is taken."""
    watch = ScriptWatch(ScriptOptions(root, WatchOptions("DebugNumericSummary", keep_bad=3), budget=1.1))
    watch.budget = EveryThird(1.1)
    watched, follower = [], follow(watch)
    try:
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = optimizer_class(model.parameters(), lr=1e-3)
        noticed = None
        for step in range(STEPS):
            watched.append(watch.is_watching and follower._block is not None)
            y = model(torch.ones(4, 3))
            if step == planted:
                y = y + torch.full((), -1.0).log()
            optimizer.zero_grad()
            y.square().mean().backward()
            optimizer.step()
            if noticed is None and watch.budget.bad is not None:
                noticed = watch.budget.bad
    finally:
        follower.end()
        watch.close()
    return watch, watched, noticed


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_step_is_noticed_at_once_and_its_operation_named_if_it_was_watched(tmp_path, seed, caplog):
    planted = random.Random(seed).randrange(STEPS)
    with caplog.at_level(logging.WARNING, "tensortap.run"):
        watch, watched, noticed = train(tmp_path / "dumps", planted)
    report = search_session(SessionDir(tmp_path / "dumps"))
    if watched[planted]:
        assert report.first_bad.step == planted
        assert report.first_bad.node.op_type == "aten::log"
    else:
        step, what = noticed
        assert step == planted
        assert what == "the gradient of model/0/weight"
        assert f"Step {planted} was not watched" in caplog.text
        if planted + 1 < STEPS:
            assert all(watched[planted + 1 :])
            assert "is not known" in report.first_bad.origin.sentence
    assert watch.budget.left_out
    assert watch.seen.steps == STEPS


def test_runs_that_are_not_watched_leave_only_the_guard_in_the_program(tmp_path):
    from torch.nn.modules import module as hooks

    watch = ScriptWatch(ScriptOptions(tmp_path / "dumps", WatchOptions("DebugNumericSummary"), budget=1.1))
    watch.budget = EveryThird(1.1)
    follower = follow(watch)
    try:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        installed = []
        for _ in range(9):
            installed.append(
                (len(hooks._global_forward_pre_hooks), model.weight._post_accumulate_grad_hooks is None)
            )
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    finally:
        follower.end()
        watch.close()
    assert set(installed) == {(2, False), (1, True)}
    assert not hooks._global_forward_pre_hooks
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


def test_the_guard_sees_what_an_optimizer_has_made_bad():
    model = nn.Linear(3, 2)
    parameters = list(model.parameters())
    assert first_bad(parameters, with_gradients=True) is None
    with torch.no_grad():
        model.bias[1] = float("inf")
    assert first_bad(parameters, with_gradients=True) == (model.bias, False)
    model.weight.grad = torch.full((2, 3), float("nan"))
    found, in_gradient = first_bad(parameters, with_gradients=True)
    assert found is model.weight
    assert in_gradient


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
)
@pytest.mark.parametrize("size", [1, 1023, 1024, 5000])
def test_the_guard_looks_at_every_element_of_every_dtype(dtype, size):
    parameter = nn.Parameter(torch.ones(size, dtype=dtype))
    assert first_bad([parameter]) is None
    for bad in (float("nan"), float("inf"), -float("inf")):
        with torch.no_grad():
            parameter[size - 1] = bad
        assert first_bad([parameter]) is not None


def test_a_budget_is_more_than_one():
    with pytest.raises(ValueError, match="above 1"):
        TimeBudget(0.5)
