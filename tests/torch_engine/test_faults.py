"""Exceptions anywhere leave nothing installed, and our own failures leave the program alone."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks_of_modules
from torch.optim import optimizer as hooks_of_optimizers
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import tensortap as tt
from tensortap.engines.torch.observer.answers import Answers
from tensortap.engines.torch.observer.decoder import Decoder
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.engines.torch.observer.numbers import Numbers
from tensortap.engines.torch.observer.records import Records
from tensortap.engines.torch.recorder import Recorder
from tensortap.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from tests.torch_engine.zoo import ZOO, make_exception_mid_step, make_op_error

pytestmark = pytest.mark.usefixtures("interceptor")

WATCH = tt.RunOptions(taps=[lambda node, slot, tensor: None])


def assert_nothing_is_installed(*modules):
    assert not _get_current_dispatch_mode_stack()
    assert not hooks_of_modules._global_forward_hooks
    assert not hooks_of_modules._global_forward_pre_hooks
    assert not hooks_of_modules._global_forward_hooks_always_called
    assert not hooks_of_optimizers._global_optimizer_pre_hooks
    assert not hooks_of_optimizers._global_optimizer_post_hooks
    for module in modules:
        for parameter in module.parameters():
            assert not parameter._post_accumulate_grad_hooks


@pytest.mark.parametrize("options", [None, WATCH], ids=["plain", "watched"])
def test_the_programs_own_exception_passes_unchanged(options):
    case = make_exception_mid_step(fail_at=1)
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    session.run(None, case.batch(0), options)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the point is that it is exactly the user's own
        session.run(None, case.batch(1), options)
    assert type(caught.value) is ValueError
    assert_nothing_is_installed(*case.modules.values())
    assert session.global_step == 1
    session.run(None, case.batch(2), options)
    assert session.global_step == 2


@pytest.mark.parametrize("options", [None, WATCH], ids=["plain", "watched"])
def test_an_error_of_an_op_is_an_op_error_with_its_line(options):
    case = make_op_error()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    with pytest.raises(InvalidArgumentError, match=r"zoo\.py:\d+") as caught:
        session.run(None, case.batch(0), options)
    assert isinstance(caught.value, RuntimeError)
    assert type(caught.value.__cause__) is RuntimeError
    if options is not None:
        assert caught.value.node.op_type == "aten::mm"
        assert caught.value.node.inputs
    assert_nothing_is_installed(*case.modules.values())


@pytest.mark.parametrize("options", [None, WATCH], ids=["plain", "watched"])
def test_memory_that_cannot_be_had_is_resource_exhausted(options):
    session = tt.torch.Session(lambda: torch.empty(1 << 60))
    with pytest.raises(ResourceExhaustedError):
        session.run(None, options=options)


@pytest.mark.parametrize("options", [None, WATCH], ids=["plain", "watched"])
@pytest.mark.parametrize(
    "error", [StopIteration(), OutOfRangeError(None, "done"), RuntimeError("mine"), KeyError("k")]
)
def test_what_the_step_raises_itself_is_not_mapped(options, error):
    def step(x):
        if (x + 1).sum() > 0:
            raise error

    session = tt.torch.Session(step)
    with pytest.raises(type(error)) as caught:
        session.run(None, {"x": torch.ones(1)}, options)
    assert caught.value is error
    assert_nothing_is_installed()


def test_an_interrupt_leaves_nothing_behind():
    def step(x):
        x + 1
        raise KeyboardInterrupt

    session = tt.torch.Session(step)
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": torch.ones(1)}, WATCH)
    assert_nothing_is_installed()


def test_an_exception_in_a_nested_module_does_not_confuse_later_scopes():
    class Fragile(nn.Module):
        def forward(self, x):
            if x.sum() < 0:
                raise ValueError("negative")
            return x * 2

    model = nn.Sequential(Fragile(), nn.Linear(2, 2))

    def step(x):
        try:
            model(-x)
        except ValueError:
            pass
        return model(x)

    session = tt.torch.Session(step)
    metadata = tt.RunMetadata()
    session.run(None, {"x": torch.ones(1, 2)}, tt.RunOptions(output_partition_graphs=True), metadata)
    names = [node.name for node in metadata.nodes]
    assert "model/1/addmm" in names
    assert "model/0/mul" in names


def test_a_failing_tap_is_counted_and_said_once(caplog):
    def bad_tap(node, slot, tensor):
        raise OSError("disk full")

    case = ZOO["sgd_momentum"]()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    with caplog.at_level(logging.WARNING, "tensortap"):
        result = session.run("loss", case.batch(0), tt.RunOptions(taps=[bad_tap]))
    assert result > 0
    assert session.faults > 10
    assert caplog.text.count("the run goes on") == 1
    assert "disk full" in caplog.text


BROKEN = {
    "dispatch": [(Recorder, each) for each in ("before", "after", "recording", "_record_gradient")],
    "native": [
        *((Decoder, "begin"), (Decoder, "find_new_state"), (Answers, "classify"), (Records, "taps")),
        *((Numbers, each) for each in ("new_entry", "gradient_scope", "owner_scope")),
        *((Nodes, each) for each in ("new_operator", "begin", "build", "gradient")),
    ],
}


@pytest.mark.parametrize("number", range(11))
def test_a_bug_of_our_own_never_reaches_the_program(interceptor, number, monkeypatch):
    if number >= len(BROKEN[interceptor]):
        pytest.skip("there are no more methods to break")
    owner, method = BROKEN[interceptor][number]

    def broken(self, *args):
        raise AttributeError("a bug in the recorder")

    plain = ZOO["adamw_forloop"]()
    expected = [float(plain.step(**plain.batch(run))["loss"].detach()) for run in range(3)]
    monkeypatch.setattr(owner, method, broken)
    case = ZOO["adamw_forloop"]()
    session = tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers)
    got = [float(session.run("loss", case.batch(run), WATCH)) for run in range(3)]
    assert got == expected
    assert session.faults > 0
    assert_nothing_is_installed(*case.modules.values())


def test_the_users_own_hooks_and_modes_stay():
    calls = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda module, args, output: calls.append("forward"))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("grad"))

    def step(x):
        model(x).sum().backward()

    session = tt.torch.Session(step)
    with Mode():
        session.run(None, {"x": torch.ones(1, 2)}, WATCH)
    assert {"aten.addmm.default", "forward", "grad"} <= set(calls)
    calls.clear()
    session.run(None, {"x": torch.ones(1, 2)})
    assert calls == ["forward", "grad"]


def test_tensors_of_odd_kinds_are_seen_or_skipped_but_never_fatal():
    def step():
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (3,), check_invariants=False)
        dense = (sparse * 2).to_dense()
        ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        return {"dense": dense, "ragged": ragged * 2, "meta": torch.empty(2, device="meta")}

    expected = step()
    session = tt.torch.Session(step)
    result = session.run(None, options=WATCH)
    assert torch.equal(result["dense"], expected["dense"])
    assert session.faults == 0
