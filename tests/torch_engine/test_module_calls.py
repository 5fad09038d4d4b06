"""Modules are called as PyTorch calls them, only quicker, while the only hooks around them are ours."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

pytest.importorskip("tensortap.engines.torch.observer.module_calls")

from tensortap.engines.torch.global_hooks import GlobalHooks
from tensortap.engines.torch.observer.module_calls import OutermostCalls, quick_calls

USUAL = vars(nn.Module)["_call_impl"]


class Told:
    """Hooks that write down what they are told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def enter(self, module, args):
        self.events.append(("enter", type(module).__name__))

    def leave(self, module, args, output):
        self.events.append(("leave", type(module).__name__))


@pytest.fixture
def told():
    told = Told()
    hooks = GlobalHooks(told.enter, told.leave)
    yield told
    hooks.remove()


class Picky(nn.Module):
    """Takes arguments of all kinds, and may raise."""

    def forward(self, x, *more, factor=1, error=None):
        if error is not None:
            raise error
        return x * factor + sum(more)


def test_hooks_are_called_in_the_order_of_pytorch_and_pytorchs_own_way_is_put_back(told):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    usual = model(torch.ones(1, 2))
    expected = list(told.events)
    told.events.clear()
    with quick_calls():
        assert vars(nn.Module)["_call_impl"] is not USUAL
        assert torch.equal(model(torch.ones(1, 2)), usual)
    assert told.events == expected
    assert vars(nn.Module)["_call_impl"] is USUAL


def test_arguments_arrive_as_they_were_given(told):
    with quick_calls():
        assert Picky()(2, 3, 4, factor=5) == 17
        assert Picky()(x=2, factor=3) == 6
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            Picky()()


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_a_module_that_raises_is_left_as_pytorch_would(told, error):
    def call():
        with pytest.raises(type(error)):
            Picky()(1, error=error)
        events = list(told.events)
        told.events.clear()
        return events

    usual = call()
    with quick_calls():
        assert call() == usual


def test_hooks_of_the_program_are_called_as_ever(told):
    seen = []
    model = Picky()
    handles = [
        model.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
        model.register_forward_hook(
            lambda module, args, kwargs, output: output + kwargs["factor"], with_kwargs=True
        ),
        nn.modules.module.register_module_forward_hook(lambda module, args, output: seen.append(output)),
    ]
    try:
        usual = model(1, factor=10)
        with quick_calls():
            assert model(1, factor=10) == usual == 30
        assert seen == [20, 20]
    finally:
        for handle in handles:
            handle.remove()


def test_hooks_that_a_module_gets_during_its_call_are_called_from_the_next_on_as_without_us(told):
    class Late(nn.Module):
        handle = None

        def forward(self, x):
            self.handle = self.handle or self.register_forward_hook(lambda module, args, output: output + 1)
            return x

    with quick_calls():
        late = Late()
        assert [late(1), late(1)] == [1, 2]
    assert told.events == 2 * [("enter", "Late"), ("leave", "Late")]


def test_backward_hooks_are_kept(told):
    gradients = []
    model = nn.Linear(2, 1)
    model.register_full_backward_hook(lambda module, inputs, outputs: gradients.append(outputs[0].sum()))
    with quick_calls():
        model(torch.ones(3, 2, requires_grad=True)).sum().backward()
    assert gradients == [3]


def test_whoever_has_replaced_pytorchs_way_keeps_it(told):
    calls = []

    def theirs(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return USUAL(self, *args, **kwargs)

    nn.Module._call_impl = theirs
    try:
        with quick_calls():
            nn.ReLU()(torch.ones(1))
        assert vars(nn.Module)["_call_impl"] is theirs
    finally:
        nn.Module._call_impl = USUAL
    with quick_calls():
        nn.Module._call_impl = theirs
        nn.ReLU()(torch.ones(1))
    assert vars(nn.Module)["_call_impl"] is theirs
    nn.Module._call_impl = USUAL
    assert calls == ["ReLU", "ReLU"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_traced_modules_and_deep_ones_are_called_too(told):
    deep = nn.ReLU()
    for _ in range(150):
        deep = nn.Sequential(deep)
    with quick_calls():
        assert deep(torch.tensor(-1.0)) == 0
        traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
        assert traced(torch.ones(1, 2)).shape == (1, 2)


def test_only_calls_from_outside_of_all_modules_are_told_and_those_of_one_thread_counted():
    roots = []

    def enter(module, args):
        roots.append(type(module).__name__)
        if threading.get_ident() == calls.thread:
            calls.depth = 1
            calls.modules += 1

    def leave(module, args, output):
        roots.append("left")
        calls.depth = 0

    calls = OutermostCalls.told_to(enter, leave)
    calls.thread, calls.hears_leave = threading.get_ident(), 1
    hooks = GlobalHooks(calls.enter, calls.leave)
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU()))
    try:
        with quick_calls():
            model(torch.ones(1))
            other = threading.Thread(target=model, args=(torch.ones(1),))
            other.start()
            other.join()
    finally:
        hooks.remove()
    # Another thread is heard of, module by module, and nothing of it is counted.
    assert roots == ["Sequential", "left", "Sequential", "ReLU", "Sequential", "ReLU"]
    assert (calls.depth, calls.modules) == (0, 4)
