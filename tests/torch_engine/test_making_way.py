"""A program that profiles itself gets the profile it would get without us."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tensortap as tt
from tensortap.sink.memory import collect
from tensortap.watch.match import watch_run


def watching():
    options = tt.RunOptions()
    watch_run(options, tt.WatchOptions(["DebugNumericSummary"]), "memcbk:///way")
    return options


class Other(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def profiled(model, x, mode=None):
    """How often each op was called, as PyTorch's profiler counts."""
    if mode is not None:
        with mode:
            return profiled(model, x)
    model.zero_grad()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(x).sum().backward()
    return {event.key: event.count for event in profile.key_averages() if event.key.startswith("aten::")}


def observed(step, x, watched):
    with collect("way") as records:
        result = tt.torch.Session(step).run(None, {"x": x}, watching() if watched else None)
    return result, [record.node_name for record in records]


def test_a_profiler_that_starts_in_the_middle_of_a_run(interceptor):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def step(x):
        before = x * 2
        counts = profiled(model, before)
        return {"counts": counts, "after": before.exp()}

    x = torch.ones(2, 4)
    expected, _ = observed(step, x, False)
    for _ in range(2):
        result, seen = observed(step, x, True)
        assert result["counts"] == expected["counts"]
        assert "mul" in seen
    plain, seen = observed(lambda x: {"y": model(x)}, x, True)
    assert any(name.endswith("tanh") for name in seen), "the next run is watched again"
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_profiler_around_the_run(interceptor):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    session = tt.torch.Session(lambda x: {"y": model(x).sum()})

    def counted(options):
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
            collect("way"),
        ):
            session.run(None, {"x": torch.ones(2, 4)}, options)
        return {event.key: event.count for event in profile.key_averages() if event.key == "aten::addmm"}

    assert counted(watching()) == counted(None) == {"aten::addmm": 1}


def test_under_a_mode_of_the_program(interceptor):
    model = nn.Linear(4, 4)

    def step(x):
        return {"counts": profiled(model, x, Other())}

    expected, _ = observed(step, torch.ones(2, 4), False)
    assert observed(step, torch.ones(2, 4), True)[0]["counts"] == expected["counts"]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_what_was_asked_for_goes_before_the_profiler(interceptor):
    model = nn.Linear(4, 4)

    def step(x):
        profiled(model, x)
        return {"y": x + 1}

    assert tt.torch.Session(step).run("add:0", {"x": torch.ones(2, 4)}).sum() == 16
