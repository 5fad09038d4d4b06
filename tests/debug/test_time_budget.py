"""A budget of time: which runs are watched, in hooks and wrapper sessions too, and what is told of the others."""

from __future__ import annotations

import json
import logging
import random
import threading

import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.analyze.session import search_session
from tensortap.commands import main
from tensortap.debug import guarding
from tensortap.debug.time_budget import TimeBudget
from tensortap.reader import SessionDir
from tensortap.sink.budget import Budget

STEPS = 24
HEALTH = tt.WatchOptions("DebugNumericSummary", keep_bad=3)


# --- the rule ------------------------------------------------------------------------------------------


def played(ratio, plain, extra, runs=5000, beside=lambda: 0.0):
    """Runs that take `plain(i)` seconds, and `extra(i)` more when they are watched; the budget and the true ratio.

    No clock is asked, so that what comes out depends on nothing else: threads of ours take what `beside` tells.
    """
    budget, with_us, without = TimeBudget(ratio, beside), 0.0, 0.0
    for i in range(runs):
        watched = budget.wants_next()
        seconds = plain(i) + (extra(i) if watched else 0.0)
        budget.ran(watched, seconds)
        with_us += seconds
        without += plain(i)
    return budget, with_us / without


PROGRAMS = {
    "all alike": (lambda i: 0.001, lambda i: 0.002),
    "almost free": (lambda i: 0.3, lambda i: 0.03),
    "rollouts and updates": (
        lambda i: 0.06 if i % 16 == 0 else 0.001,
        lambda i: 0.1 if i % 16 == 0 else 0.002,
    ),
    "two phases": (lambda i: 0.01 if i % 2 else 0.001, lambda i: 0.005),
    "another program each time": (lambda i: 0.001, lambda i: 0.02 if i % 7 else 0.001),
    "pauses": (lambda i: 1.0 if i % 500 == 7 else 0.001, lambda i: 0.002),
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("ratio", [1.05, 1.1, 1.5])
def test_a_program_stays_within_its_budget(kind, ratio):
    budget, true = played(ratio, *PROGRAMS[kind])
    assert true < 1 + (ratio - 1) * 1.1
    plain, extra = (sum(map(each, range(5000))) for each in PROGRAMS[kind])
    could_be_watched = min((ratio - 1) * plain / (extra / 5000), 5000)
    assert budget.watched > could_be_watched / 10


def test_the_time_there_is_is_used():
    _, true = played(1.1, *PROGRAMS["all alike"])
    assert true > 1.045


def test_what_is_told_is_what_it_cost():
    budget, true = played(1.1, *PROGRAMS["all alike"])
    assert budget.cost == pytest.approx(true, abs=0.005)


def test_what_threads_of_ours_take_beside_the_program_is_part_of_it():
    beside = 0.00003
    budget, true = played(1.1, *PROGRAMS["all alike"], beside=lambda: beside)
    assert budget.cost == pytest.approx(true + beside / 0.001, abs=0.005)
    assert budget.cost < 1.1
    assert 5 < budget.watched < played(1.1, *PROGRAMS["all alike"])[0].watched


def test_learning_counts_and_is_paid_back():
    budget, _ = played(1.1, lambda i: 0.1, lambda i: 3.0, runs=200)
    assert budget.watched == 1
    budget, true = played(1.1, lambda i: 0.1, lambda i: 3.0 if i < 50 else 0.05, runs=5000)
    assert budget.watched > 100
    assert true < 1.11


def test_a_budget_is_more_than_one():
    with pytest.raises(ValueError, match="above 1"):
        Budget(time=0.5)


# --- hooks ---------------------------------------------------------------------------------------------


class EveryThird(TimeBudget):
    """Watches by count instead of by clock, so that a test knows what to expect."""

    def wants_next(self):
        return self.bad is not None or self.watched < 2 or (self.watched + self.left_out) % 3 == 0


@pytest.fixture
def by_count(monkeypatch):
    monkeypatch.setattr(guarding, "TimeBudget", EveryThird)


def is_watched(step):
    return step < 2 or step % 3 == 0


def make_step(planted):
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    done = 0

    def step(x):
        nonlocal done
        y = model(x)
        if done == planted:
            y = y + torch.full((), -1.0).log()
        done += 1
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # what the guard looks at must be looked at before this
        return {"loss": loss}

    return model, optimizer, step


def with_a_monitored_session(root, planted):
    hook = tt.DumpingDebugHook(root, lambda fetches, feeds: HEALTH, budget=1.1)
    with tt.MonitoredSession(tt.torch.Session(make_step(planted)[2]), hooks=[hook]) as session:
        for _ in range(STEPS):
            session.run("loss", {"x": torch.ones(4, 3)})
            session.run("global_step:0")  # reading state is no run
    return hook._dumper._guarding.budget


def with_a_loop(root, planted):
    hook = tt.DumpingDebugHook(root, lambda fetches, feeds: HEALTH, budget=Budget(time=1.1))
    model, optimizer, step = make_step(planted)
    with tt.torch.monitor(model, optimizer, hooks=[hook]) as monitor:
        for _ in range(STEPS):
            with monitor.run():
                step(torch.ones(4, 3))
    return hook._dumper._guarding.budget


def with_a_budget_of_the_loop(root, planted):
    hooks = [
        tt.DumpingDebugHook(each, lambda fetches, feeds: HEALTH) for each in (root, root / ".." / "more")
    ]
    model, optimizer, step = make_step(planted)
    with tt.torch.monitor(
        model, optimizer, hooks=[*hooks, tt.StopAtStepHook(last_step=STEPS)], budget=1.1
    ) as monitor:
        while not monitor.should_stop():  # other hooks hear of every run
            with monitor.run():
                step(torch.ones(4, 3))
    dumps = [{each.name.rpartition("_")[2] for each in hook._dumper.root.glob("run_*")} for hook in hooks]
    assert dumps[0] == dumps[1], "both have watched the same runs"
    return hooks[0]._dumper._guarding.budget


def with_a_wrapper(root, planted):
    engine = tt.torch.Session(make_step(planted)[2])
    with tt.DumpingDebugWrapperSession(engine, root, lambda fetches, feeds: HEALTH, budget=1.1) as session:
        for _ in range(STEPS):
            session.run("loss", {"x": torch.ones(4, 3)})
    return session._dumper._guarding.budget


@pytest.mark.usefixtures("by_count")
@pytest.mark.parametrize(
    "train", [with_a_monitored_session, with_a_loop, with_a_budget_of_the_loop, with_a_wrapper]
)
@pytest.mark.parametrize("seed", range(4))
def test_hooks_notice_a_bad_step_at_once_and_name_its_operation_if_it_was_watched(
    tmp_path, train, seed, caplog
):
    planted = random.Random(seed).randrange(2, STEPS - 1)
    with caplog.at_level(logging.WARNING, "tensortap.hooks"):
        budget = train(tmp_path / "dumps", planted)
    report = search_session(SessionDir(tmp_path / "dumps"))
    if is_watched(planted):
        assert report.first_bad.step == planted
        assert report.first_bad.node.op_type == "aten::log"
    else:
        assert budget.bad[0] == planted
        assert f"Step {planted} was not watched" in caplog.text
        assert report.first_bad.step == planted + 1  # watched in full from then on
        assert report.first_bad.node.op_type != "aten::log"
        assert f"made in step {planted}, which was not watched" in report.first_bad.origin.sentence
        assert budget.watched + budget.left_out == STEPS
        assert report.coverage.guarded[0].guarded == budget.left_out


def test_a_loop_has_one_budget_and_a_hook_that_it_is_for(tmp_path):
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="there is none among the hooks"):
        tt.torch.monitor(model, hooks=[tt.StopAtStepHook(last_step=1)], budget=1.1)
    with pytest.raises(ValueError, match="a ratio above 1"):
        tt.torch.monitor(model, hooks=[tt.DumpingDebugHook(tmp_path / "dumps")], budget=0.9)
    with pytest.raises(ValueError, match="of its own"):
        tt.torch.monitor(model, hooks=[tt.DumpingDebugHook(tmp_path / "dumps", budget=1.1)], budget=1.2)


@pytest.mark.usefixtures("by_count")
def test_a_loop_that_fails_in_a_guarded_run_is_left_as_it_was(tmp_path):
    before = torch.autograd._engine_run_backward
    model, optimizer, step = make_step(planted=-1)
    hook = tt.DumpingDebugHook(tmp_path / "dumps", lambda fetches, feeds: HEALTH)
    with tt.torch.monitor(model, optimizer, hooks=[hook], budget=1.1) as monitor:
        for number in range(9):
            if number in (3, 4, 5):
                with pytest.raises(KeyError), monitor.run():
                    raise KeyError(number)
                assert torch.autograd._engine_run_backward is before
            else:
                with monitor.run():
                    step(torch.ones(4, 3))
    assert torch.autograd._engine_run_backward is before


@pytest.mark.usefixtures("by_count")
def test_a_result_that_is_bad_is_noticed_where_nothing_is_trained(tmp_path, caplog):
    hook = tt.DumpingDebugHook(tmp_path / "dumps", lambda fetches, feeds: HEALTH, budget=1.1)
    with tt.MonitoredSession(tt.torch.Session(lambda x: {"y": x.log()}), hooks=[hook]) as session:
        for step in range(6):
            session.run("y", {"x": torch.tensor([-1.0 if step == 4 else 1.0])})
    assert "Step 4 was not watched" in caplog.text
    assert "the result 'y'" in caplog.text


@pytest.mark.usefixtures("by_count")
def test_guarded_runs_leave_nothing_behind_even_when_they_fail(tmp_path):
    from torch.optim import optimizer as hooks

    def step(x):
        if fails:
            raise KeyError("x")
        return {"y": x + 1}

    hook = tt.DumpingDebugHook(tmp_path / "dumps", lambda fetches, feeds: HEALTH, budget=1.1)
    before = torch.autograd._engine_run_backward
    with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
        for number in range(9):
            fails = number == 4
            if fails:
                with pytest.raises(KeyError):
                    session.run("y", {"x": torch.ones(1)})
            else:
                session.run("y", {"x": torch.ones(1)})
    assert not hooks._global_optimizer_post_hooks
    assert torch.autograd._engine_run_backward is before


def test_a_stream_keeps_to_a_budget_too(tmp_path):
    # Nobody listens there; a spool is filled meanwhile.
    quick = tt.StreamOptions(connect_timeout_secs=0.1, flush_secs=0.1, spool_dir=tmp_path / "spool")
    hook = tt.GrpcDebugHook("localhost:1", lambda fetches, feeds: HEALTH, stream=quick, budget=1.1)
    hook._guarding.budget = EveryThird(1.1)
    with tt.MonitoredSession(tt.torch.Session(make_step(4)[2]), hooks=[hook]) as session:
        for _ in range(4):
            session.run("loss", {"x": torch.ones(4, 3)})
        assert hook._guarding.budget.left_out == 1
        session.run("loss", {"x": torch.ones(4, 3)})
    assert hook._guarding.budget.bad == (4, "the gradient of model/0/weight")
    assert "5 runs watched" in hook.outcomes()[-1]


def test_an_engine_without_a_guard_says_so(tmp_path):
    class Unguarded(tt.torch.Session):
        guard = None

    hook = tt.DumpingDebugHook(tmp_path / "dumps", budget=1.1)
    with pytest.raises(NotImplementedError, match="Unguarded has no guard"):
        with tt.MonitoredSession(Unguarded(lambda x: {"y": x}), hooks=[hook]) as session:
            session.run("y", {"x": torch.ones(1)})


def test_threads_have_a_guard_each(tmp_path, monkeypatch):
    monkeypatch.setattr(guarding, "TimeBudget", EveryThird)
    hook = tt.DumpingDebugHook(tmp_path / "dumps", lambda fetches, feeds: HEALTH, budget=1.1)
    session = tt.torch.Session(lambda x: {"y": x + 1})
    with tt.MonitoredSession(session, hooks=[hook]) as monitored:

        def work():
            for _ in range(10):
                monitored.run("y", {"x": torch.ones(2)})

        threads = [threading.Thread(target=work) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    budget = hook._dumper._guarding.budget
    assert budget.bad is None
    assert budget.left_out >= 10


# --- what commands say ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_count")
def test_commands_know_which_runs_were_only_guarded(tmp_path, capsys):
    with_a_loop(tmp_path / "good", planted=None)
    assert main(["why", str(tmp_path / "good")]) == 0
    assert "of 24 runs were watched" in capsys.readouterr().out
    for command in ("ls", "health"):
        main([command, str(tmp_path / "good")])
        assert "of 24 runs were watched" in capsys.readouterr().err
    main(["why", str(tmp_path / "good"), "--json"])
    (guarded,) = json.loads(capsys.readouterr().out)["coverage"]["guarded"]
    assert guarded["guarded"] == sum(not is_watched(step) for step in range(STEPS))


@pytest.mark.usefixtures("by_count")
def test_why_does_not_accuse_the_operation_that_saw_it_first(tmp_path, capsys):
    with_a_loop(tmp_path / "bad", planted=10)
    assert main(["why", str(tmp_path / "bad")]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "first bad value that was seen" in told
    assert "The bad value was made in step 10, which was not watched: after it," in told
    assert "the gradient of model/0/weight was NaN or infinite" in told


@pytest.mark.usefixtures("by_count")
def test_why_tells_of_a_bad_last_step_that_nobody_watched(tmp_path, capsys):
    with_a_loop(tmp_path / "bad", planted=STEPS - 1)
    assert main(["why", str(tmp_path / "bad")]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert f"in step {STEPS - 1}, which was not watched" in told
    assert "The operation that made it so is not known." in told
