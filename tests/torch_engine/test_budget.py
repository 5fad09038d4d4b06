"""Watching only as much as a budget of time allows: nothing bad passes unnoticed."""

from __future__ import annotations

import copy
import gc
import logging
import random
import sys
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from tensortap.analyze.session import search_session
from tensortap.debug.time_budget import TimeBudget
from tensortap.engines.torch.follow import follow
from tensortap.engines.torch.glance import first_bad
from tensortap.engines.torch.guard import Guard
from tensortap.engines.torch.program import Program
from tensortap.launch.watch import ScriptOptions, ScriptWatch
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
            watched.append(watch.is_watching and follower._runs.is_open)
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


@pytest.mark.parametrize("seed", range(12))
def test_a_bad_step_is_noticed_at_once_and_its_operation_named_if_it_was_watched(tmp_path, seed, caplog):
    planted = random.Random(seed).randrange(STEPS)
    with caplog.at_level(logging.WARNING, "tensortap.hooks"):
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


# --- what a guard must see, and what it must not mind --------------------------------------------------

BAD_STEP = 7


@contextmanager
def guarded(root, watched=2, **options):
    """A program of which only the first runs are watched."""
    watch = ScriptWatch(
        ScriptOptions(root, WatchOptions("DebugNumericSummary", keep_bad=3), budget=1.1, **options)
    )
    watch.budget = OnlyFirst(1.1)
    watch.budget.first = watched
    follower = follow(watch)
    try:
        yield watch
    finally:
        follower.end()
        watch.close()


class OnlyFirst(TimeBudget):
    first = 2

    def wants_next(self):
        return self.bad is not None or self.watched < self.first


def spoiled(step, value):
    """A value that is NaN in the bad step."""
    return value * torch.tensor(float("nan")) if step == BAD_STEP else value


def plain(optimizer_class=torch.optim.SGD, dtype=torch.float32, **options):
    def train():
        model = nn.Sequential(nn.Linear(3, 4, dtype=dtype), nn.Linear(4, 2, dtype=dtype))
        optimizer = optimizer_class(model.parameters(), lr=1e-3, **options)
        x = torch.ones(4, 3, dtype=dtype)
        for step in range(10):
            optimizer.zero_grad()
            spoiled(step, model(x).abs().mean()).backward()
            optimizer.step()

    return train


def sparse():
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    for step in range(10):
        optimizer.zero_grad()
        spoiled(step, model(torch.tensor([1, 2])).sum()).backward()
        optimizer.step()


def two_optimizers():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, second)]
    for step in range(10):
        y = spoiled(step, second(first(torch.ones(1, 2)))).sum()
        for each in optimizers:
            each.zero_grad()
        y.backward()
        for each in optimizers:
            each.step()


def phases_of_a_gan():
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in (generator, critic)]
    for step in range(5):
        for phase, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            spoiled(2 * step + phase, critic(generator(torch.ones(3, 2))).mean()).backward()
            optimizer.step()


def accumulation():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        for part in range(3):
            spoiled(step if part == 0 else -1, model(torch.ones(4, 2))).sum().backward()
        optimizer.step()


def by_hand():
    model = nn.Linear(2, 1)
    for step in range(10):
        spoiled(step, model(torch.ones(4, 2))).sum().backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.1 * each.grad
                each.grad = None


def by_hand_behind_autograd():
    model = nn.Linear(2, 1)
    for step in range(10):
        spoiled(step, model(torch.ones(4, 2))).sum().backward()
        for each in model.parameters():
            each.data.sub_(0.1 * each.grad.data)
            each.grad.zero_()


def closures():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for step in range(10):

        def closure(step=step):
            optimizer.zero_grad()
            loss = spoiled(step, model(torch.ones(4, 2)).square().sum())
            loss.backward()
            return loss

        optimizer.step(closure)


def only_the_loss():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        (model(torch.ones(4, 2)).sum() + spoiled(step, torch.ones(()))).backward()
        optimizer.step()


def an_infinity_of_the_optimizer():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.param_groups[0]["lr"] = 3e38 if step == BAD_STEP else 0.1
        optimizer.step()


def evaluation():
    model = nn.Linear(2, 1).eval()
    with torch.no_grad():
        for step in range(10):
            model(spoiled(step, torch.ones(4, 2)))


def evaluation_while_training():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(spoiled(step + 1, torch.ones(4, 2)))


SEEN = {
    "sgd": (plain(), "the gradient of model/0/weight"),
    "foreach": (plain(torch.optim.AdamW, foreach=True), "the gradient of model/0/weight"),
    "fused": (plain(torch.optim.AdamW, fused=True), "the gradient of model/0/weight"),
    "bfloat16": (plain(dtype=torch.bfloat16), "the gradient of model/0/weight"),
    "complex": (plain(torch.optim.Adam, torch.complex64), "the gradient of model/0/weight"),
    "sparse": (sparse, "the gradient of model/weight"),
    "two optimizers": (two_optimizers, "the gradient of first/weight"),
    "gan": (phases_of_a_gan, "the gradient of critic/weight"),
    "accumulation": (accumulation, "the gradient of model/weight"),
    "by hand": (by_hand, "model/weight"),
    "by hand, behind autograd": (by_hand_behind_autograd, "model/weight"),
    "lbfgs": (closures, "the gradient of model/weight"),
    "only the loss": (only_the_loss, "the loss"),
    "infinite step": (an_infinity_of_the_optimizer, "model/weight"),
    "evaluation": (evaluation, "the output of model"),
    "evaluation while training": (evaluation_while_training, "the output of model"),
}


@pytest.mark.parametrize("kind", SEEN)
def test_the_guard_misses_no_bad_update(tmp_path, kind):
    program, what = SEEN[kind]
    with guarded(tmp_path / "dumps") as watch:
        program()
    step, found = watch.budget.bad
    assert found == what
    assert step == (BAD_STEP if "by hand" not in kind and kind != "evaluation" else -1)
    assert watch.found.is_set()


def scaled(fused):
    def train():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(10):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 2)).sum() * (float("inf") if step == BAD_STEP else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert all(each.isfinite().all() for each in model.parameters())

    return train


def infinite_on_purpose():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.mask = nn.Parameter(torch.tensor([0.0, 0.0, float("-inf")]), requires_grad=False)
            self.register_buffer("more", torch.full((3,), float("-inf")))

        def forward(self, x):
            return (self.linear(x) + self.mask).softmax(-1)

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            model.linear(torch.ones(2, 3)) + model.mask


def nan_on_purpose():
    class Padded(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y if torch.is_grad_enabled() else torch.cat([y, torch.full_like(y, float("nan"))])

    model = Padded(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.ones(4, 2))


def left_out_by_the_program():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        loss = spoiled(step, model(torch.ones(4, 2))).sum()
        loss.backward()
        if loss.isfinite():
            optimizer.step()


HARMLESS = {
    "scaler": scaled(fused=False),
    "scaler, fused": scaled(fused=True),
    "mask": infinite_on_purpose,
    "padding": nan_on_purpose,
    "left out": left_out_by_the_program,
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_the_guard_does_not_mind_what_is_meant(tmp_path, kind):
    with guarded(tmp_path / "dumps") as watch:
        HARMLESS[kind]()
    assert watch.budget.bad is None
    assert watch.budget.left_out >= 5


@pytest.mark.parametrize("by_function", [False, True])
def test_without_models_and_optimizers_the_guard_looks_at_what_backward_passes_bring(tmp_path, by_function):
    watch = ScriptWatch(ScriptOptions(tmp_path, WatchOptions("DebugNumericSummary", keep_bad=3), budget=1.1))
    watch.budget = EveryThird(1.1)
    follower = follow(watch)
    try:
        for step in range(9):
            factor = torch.nan if step == 6 else 1.0  # which is not watched
            if by_function:
                torch.func.grad(lambda x, factor: (x * x * factor).sum())(torch.ones(3), factor)
            else:
                (torch.ones(3, requires_grad=True) * factor).sum().backward()
    finally:
        follower.end()
        watch.close()
    assert watch.seen.passes == 9
    assert watch.budget.bad == (6, "the loss")


def test_runs_that_are_not_watched_leave_only_the_guard_in_the_program(tmp_path):
    from torch.nn.modules import module as hooks

    from tensortap.engines.torch.observer.guarded_calls import GuardedCalls

    # Where something was compiled before, in this process by another test, calls are heard of by a hook.
    hooks_of_guard = 0 if GuardedCalls.may_be() else 1
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
    assert set(installed) == {(2, False), (hooks_of_guard, True)}
    assert not hooks._global_forward_pre_hooks
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


class Never(TimeBudget):
    """Watches the first runs only."""

    def wants_next(self):
        return self.watched < 2


def test_a_model_that_is_over_is_let_go_without_waiting_for_a_watched_run(tmp_path, no_backend):
    watch = ScriptWatch(ScriptOptions(tmp_path / "dumps", WatchOptions("DebugNumericSummary"), budget=1.1))
    watch.budget = Never(1.1)
    follower = follow(watch)

    def train_another():
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
        return weakref.ref(model)

    try:
        first = train_another()
        train_another()
        gc.collect()
        assert first() is None
    finally:
        follower.end()
        watch.close()
    assert watch.budget.left_out


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


class Failing(nn.Linear):
    """Fails when it is told to."""

    fails = False

    def forward(self, x):
        if self.fails:
            raise KeyError("x")
        return super().forward(x)


def test_a_model_whose_call_failed_can_still_be_saved_and_copied(tmp_path):
    with guarded(tmp_path / "dumps") as watch:
        model = Failing(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(10):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
            model.fails = step == 5
            try:
                with torch.no_grad():
                    model(torch.ones(4, 2))
            except KeyError:
                torch.save(model, tmp_path / "model.pt")
                torch.load(tmp_path / "model.pt", weights_only=False).requires_grad_()
                copy.deepcopy(model)
            model.fails = False
    assert not model._forward_hooks
    assert watch.budget.bad is None


def test_guards_that_end_in_any_order_leave_backward_passes_as_they_were():
    before = torch.autograd._engine_run_backward
    first, second = Guard(Program({"a": nn.Linear(1, 1)})), Guard(Program({"b": nn.Linear(1, 1)}))
    first.listen()
    second.listen()
    first.stop_listening()
    second.stop_listening()
    assert torch.autograd._engine_run_backward is before
