"""What is noted of updates: what led to them, and what they did to parameters."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from torch import nn

from tensortap.engines.torch.program import Program
from tensortap.engines.torch.updates import UpdateCollector, looks


class Looking:
    """A model whose updates are looked at."""

    def __init__(self, model, **modules):
        self.model = model
        self.updates = []
        self.collector = UpdateCollector(
            Program({"model": model, **modules}), lambda: len(self.updates), self.updates.append
        )

    def last(self, name):
        return next(each for each in self.updates[-1].parameters if each.name == name)


@pytest.fixture
def looking():
    opened = []

    def look(model, **modules):
        opened.append(Looking(model, **modules))
        return opened[-1]

    yield look
    for each in opened:
        each.collector.close()


def train(model, optimizer, steps=1, clear="before"):
    for _ in range(steps):
        if clear == "before":
            optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        if clear == "between":
            optimizer.zero_grad()
        optimizer.step()


def test_an_update_tells_what_led_to_it_and_what_it_changed(looking):
    model = nn.Linear(3, 1)
    seen = looking(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    (update,) = seen.updates
    assert [event.what for event in update.events] == ["clear", "backward", "step"]
    assert [event.source.file == __file__ for event in update.events] == [True] * 3
    assert (update.variable, update.groups[0].rate, update.groups[0].parameters) == (
        "optimizer",
        0.1,
        ("model/weight", "model/bias"),
    )
    weight = seen.last("model/weight")
    assert weight.is_reached
    assert weight.changed == 1.0
    assert weight.held == ("SGD",)
    assert weight.mark != weight.mark_before


@pytest.mark.parametrize(
    "clearing",
    [
        lambda p: setattr(p, "grad", None),
        lambda p: p.grad.zero_(),
        lambda p: p.grad.data.zero_(),
        lambda p: setattr(p, "grad", torch.zeros_like(p)),
    ],
)
def test_a_gradient_is_stale_unless_something_clears_it(looking, clearing):
    model = nn.Linear(3, 1)
    seen = looking(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 2, clear="never")
    assert seen.last("model/weight").is_stale
    for parameter in model.parameters():
        clearing(parameter)
    train(model, optimizer, clear="never")
    assert not seen.last("model/weight").is_stale


def test_what_another_backward_pass_adds_does_not_count_if_it_is_cleared_later(looking):
    critic = nn.Linear(3, 1)
    seen = looking(critic)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(3):
        train(critic, optimizer)
        critic(torch.randn(4, 3)).mean().backward()  # as the generator's loss goes through the critic
    assert seen.last("model/weight").is_stale is False


def test_accumulated_gradients_are_not_stale(looking):
    model = nn.Linear(3, 1)
    seen = looking(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(4):
            model(torch.randn(4, 3)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen.last("model/weight").is_stale is False


def test_a_parameter_that_the_loss_does_not_lead_to_is_told_with_its_line(looking):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(3, 1), None
            self.right = nn.Linear(3, 1)

        def forward(self, x):
            return self.left(x)

    model = Two()
    seen = looking(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    right = seen.last("model/right/weight")
    assert (right.is_reached, right.gradient, right.changed) == (False, None, 0.0)
    assert right.source.file == __file__


def test_tensors_that_a_module_holds_without_knowing_are_told(looking):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = [nn.Linear(3, 3)]
            self.head = nn.Linear(3, 1)

        def forward(self, x):
            return self.head(self.blocks[0](x))

    model = Listed()
    seen = looking(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert {stray.name for stray in seen.updates[-1].strays} == {
        "model/blocks/0/weight",
        "model/blocks/0/bias",
    }
    assert len({stray.mark for update in seen.updates[1:] for stray in update.strays}) == 2


def test_elements_that_rounding_keeps_are_counted(looking):
    model = nn.Linear(3, 64, dtype=torch.bfloat16)
    seen = looking(model)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model(torch.randn(4, 3, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    weight = seen.last("model/weight")
    assert weight.lost == pytest.approx(weight.nonzero)


def test_ever_fewer_updates_are_looked_at_and_those_unlike_all_before(looking):
    model = nn.Linear(3, 1)
    seen = looking(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 60)
    assert [each.count for each in seen.updates] == [*range(11), 20, 30, 40, 50]
    model.eval()
    train(model, optimizer, 8)
    assert 61 <= seen.updates[16].count <= 65
    assert not seen.updates[-1].modes[0].trains


def test_a_step_that_a_scaler_leaves_out_is_an_update(looking):
    model = nn.Linear(3, 1)
    seen = looking(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.full((2, 3), torch.inf)).mean()).backward()
    scaler.step(optimizer)
    assert seen.updates[-1].is_skipped


def test_nothing_stays_in_pytorch_when_it_is_over(looking):
    before = torch.optim.Optimizer.zero_grad, nn.utils.clip_grad_norm_, torch.amp.GradScaler.step
    seen = looking(nn.Linear(3, 1))
    assert torch.optim.Optimizer.zero_grad is not before[0]
    seen.collector.close()
    seen.collector.close()
    assert before == (torch.optim.Optimizer.zero_grad, nn.utils.clip_grad_norm_, torch.amp.GradScaler.step)


def test_results_are_the_same_to_the_last_bit(looking):
    def trained(looks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        seen = looking(model) if looks else None
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        train(model, optimizer, 15)
        if seen is not None:
            seen.collector.close()
        return [each.tolist() for each in model.parameters()]

    assert trained(True) == trained(False)


def test_a_fault_of_ours_ends_the_looking_and_not_the_program(looking, caplog):
    model = nn.Linear(3, 1)
    seen = looking(model)
    seen.collector._write = lambda update: 1 / 0
    with caplog.at_level(logging.WARNING, "tensortap.checks"):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert [record.message[:28] for record in caplog.records] == ["Updates are not looked at an"]


def test_other_threads_are_left_alone(looking):
    model = nn.Linear(3, 1)
    seen = looking(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    thread = threading.Thread(target=train, args=(model, optimizer, 3))
    thread.start()
    thread.join()
    assert len(seen.updates) == 1


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
)
def test_parameters_read_at_once_measure_as_those_read_one_by_one(dtype, monkeypatch):
    torch.manual_seed(0)
    parameters = [
        torch.randn(40, 60).to(dtype).requires_grad_(),
        torch.randn(40, 60).to(dtype).t().requires_grad_(),
        torch.randn(40, 60).to(dtype)[::2, ::3].requires_grad_(),
        torch.randn(7).to(dtype).requires_grad_(),
        torch.zeros(0).to(dtype).requires_grad_(),
    ]
    sum((each * torch.randn(each.shape).relu()).abs().sum() for each in parameters[:4]).backward()

    def measured():
        look = looks.Look(parameters)
        with torch.no_grad():
            for each in parameters:
                each[: each.shape[0] // 2] += 1
        found, _ = look.measured([True] * 5)
        with torch.no_grad():
            for each in parameters:
                each[: each.shape[0] // 2] -= 1
        return found, look.have_gradients()

    start = [each.detach().clone() for each in parameters]
    at_once, gradients = measured()
    for parameter, value in zip(parameters, start, strict=True):
        parameter.data.copy_(value)
    monkeypatch.setattr(looks, "native", lambda name: None)
    singly, gradients_singly = measured()
    assert gradients == gradients_singly == [True] * 4 + [False]
    for name in ("size", "gradient", "nonzero", "changed", "lost"):
        assert at_once[name].tolist() == pytest.approx(singly[name].tolist(), nan_ok=True)
    assert 0.3 < at_once["changed"][0] <= 0.5 or dtype.is_complex
    assert at_once["nonzero"][0] < 0.7


def test_optimizers_made_one_after_the_other_are_looked_at_if_they_live_for_long(looking):
    seen = looking(nn.Linear(3, 1))
    for _ in range(16):
        train(seen.model, torch.optim.SGD(seen.model.parameters(), lr=0.1), steps=3)
    before = len(seen.updates)
    assert before == 48
    train(seen.model, torch.optim.SGD(seen.model.parameters(), lr=0.1), steps=3)
    assert len(seen.updates) == before
    optimizer = torch.optim.SGD(seen.model.parameters(), lr=0.1)
    train(seen.model, optimizer, steps=30)
    counts = [each.count for each in seen.updates[before:]]
    assert counts == list(range(12, 23))


def test_a_program_that_is_built_differently_is_listed_again(looking):
    seen = looking(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(seen.model.parameters(), lr=0.1)
    train(seen.model, optimizer, steps=2)
    seen.model.scale = nn.Parameter(torch.ones(2))
    train(seen.model, optimizer, steps=1)
    optimizer.add_param_group({"params": [seen.model.scale]})
    seen.model.bias.requires_grad_(False)
    train(seen.model, optimizer, steps=1)
    optimizer.zero_grad()
    seen.model.weight.data = torch.ones(2, 3)
    train(seen.model, optimizer, steps=1)
    told = [
        [(each.name.rpartition("/")[2], each.held, each.trains, each.shape) for each in update.parameters]
        for update in seen.updates
    ]
    own = ("SGD",)
    before = [("weight", own, True, (1, 3)), ("bias", own, True, (1,))]
    assert told[:3] == [before, before, [*before, ("scale", (), True, (2,))]]
    assert told[3] == [before[0], ("bias", own, False, (1,)), ("scale", own, True, (2,))]
    assert told[4] == [("weight", own, True, (2, 3)), *told[3][1:]]


def test_a_change_late_in_a_training_is_noticed_within_eight_steps(looking):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 1))
    seen = looking(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, steps=141)
    last = seen.updates[-1].count
    model.eval()
    train(model, optimizer, steps=8)
    assert last == 100
    assert [each.count for each in seen.updates if each.count > 100] == [144, 145, 146]
    assert not seen.updates[-1].modes[0].trains
