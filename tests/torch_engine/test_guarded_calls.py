"""Calls of models in guarded runs: looked at in C, told of where Python decides, gone where something is compiled."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

pytest.importorskip("tensortap.engines.torch.observer.guarded_calls")

from tensortap.engines.torch.observer import guarded_calls
from tensortap.engines.torch.observer.guarded_calls import GuardedCalls


class Odd(nn.Module):
    """Returns what it is told to."""

    def __init__(self, *results):
        super().__init__()
        self.inner = nn.Identity()
        self.results = list(results)

    def forward(self, x):
        self.inner(x)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def heard(monkeypatch):
    monkeypatch.setattr(guarded_calls, "_is_compiling", False)
    told, looked = [], []
    calls = GuardedCalls(lambda: told.append(True), lambda module, output: looked.append(output))
    calls.told, calls.looked = told, looked
    yield calls
    calls.remove()


NAN = torch.tensor(float("nan"))
FINE = [
    torch.ones(3),
    None,
    1.5,
    "text",
    (torch.ones(2), [None]),
    {"logits": torch.ones(1)},
    torch.ones(2, dtype=int),
]
SUSPECT = [
    NAN,
    (torch.ones(1), NAN),
    {"a": [NAN]},
    torch.ones(4, 4)[:, ::2],
    torch.eye(2).to_sparse(),
    object(),
]


def test_only_what_is_not_plainly_finite_is_told(heard):
    heard.gate.quiet = 100
    model = Odd(*FINE, *SUSPECT)
    for expected in [*FINE, *SUSPECT]:
        assert model(0) is expected
    assert all(mine is theirs for mine, theirs in zip(heard.looked, SUSPECT, strict=True))
    assert not heard.told
    assert heard.gate.quiet == 100 - len(FINE) - len(SUSPECT)
    assert heard.gate.own_ns > 0


def test_python_hears_of_the_calls_that_were_not_granted(heard):
    heard.gate.quiet = 2
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    for _ in range(5):
        model(torch.ones(1, 1))
    assert len(heard.told) == 3


def test_what_leads_to_a_step_is_left_to_the_look_at_it(heard):
    heard.gate.trains = 1
    model = Odd(NAN, NAN, NAN)
    model(0)
    with torch.no_grad():
        model(0)
    assert heard.gate.leads
    assert not heard.looked
    assert not heard.told
    heard.gate.leads, heard.gate.stepped = 0, 1
    model(0)
    assert len(heard.told) == 1


def test_errors_and_hooks_of_the_program_pass(heard):
    heard.gate.quiet = 10
    model = Odd(ValueError("mine"), torch.ones(1), torch.ones(1))
    with pytest.raises(ValueError, match="mine"):
        model(0)
    assert heard.gate.depth == 0
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(output))
    model(0)
    nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global")).remove()
    model.inner.register_forward_pre_hook(lambda module, args: seen.append(args))
    model(0)
    assert [type(each) for each in seen] == [torch.Tensor, tuple, torch.Tensor]


def test_calls_of_other_threads_are_not_looked_at(heard):
    heard.gate.quiet = 10
    thread = threading.Thread(target=Odd(NAN), args=(0,))
    thread.start()
    thread.join()
    assert not heard.looked
    assert heard.gate.quiet == 10


COMPILES = """
import torch
from torch import nn
from tensortap.engines.torch.observer.guarded_calls import GuardedCalls
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
model[0].register_forward_hook(lambda module, args, output: output * 2)
torch.optim.SGD(model.parameters(), lr=0.1)
usual = vars(nn.Module)["_call_impl"]
assert GuardedCalls.may_be()
calls = GuardedCalls(lambda: None, lambda module, output: None)
calls.gate.quiet = 100
plain = model(torch.ones(1, 2))
assert calls.is_there
torch._dynamo.reset()  # forgets what others want to be told of
assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(torch.ones(1, 2)), plain)
assert not calls.is_there and vars(nn.Module)["_call_impl"] is usual
assert not GuardedCalls.may_be()
"""


def test_nothing_of_it_is_left_when_something_is_compiled():
    subprocess.run([sys.executable, "-c", COMPILES], check=True)
