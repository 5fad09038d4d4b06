"""What engines tell of every node: phase, module, views and writes. Graphs keep it, and names need not be asked."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensortap as tt
from tensortap.analyze.facts import node_of_proto
from tensortap.analyze.session import search_session
from tensortap.phases import module_of, phase_of, position_by_name
from tensortap.reader import SessionDir
from tensortap.records import Node, Position
from tensortap.wire.graph_def import nodes_to_proto
from tests.torch_engine.test_naming import nodes_of
from tests.torch_engine.zoo import ZOO

pytestmark = pytest.mark.usefixtures("interceptor")


def position(node):
    return Position(node.phase, node.module)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_names_and_facts_agree_in_ordinary_programs(name):
    """So that graphs from before the facts, which have names only, give the same answers."""
    case = ZOO[name]()
    nodes = nodes_of(case.step, case.batch(0), modules=case.modules, optimizers=case.optimizers)
    assert {node.name: node.phase for node in nodes.values()} == {
        node.name: position_by_name(node).phase for node in nodes.values()
    }


def training(**modules):
    """A step that trains modules which the user has called so."""
    parameters = [each for module in modules.values() for each in module.parameters()]
    optimizer = torch.optim.Adam(parameters, foreach=False)

    def step(x):
        optimizer.zero_grad()
        for module in modules.values():
            x = module(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return nodes_of(step, {"x": torch.ones(2, 3)}, modules=modules, optimizers={"adam": optimizer})


def test_a_model_may_be_called_like_a_phase():
    nodes = training(optimizer=nn.Linear(3, 3), gradients=nn.Linear(3, 1))
    assert position(nodes["optimizer/addmm"]) == ("forward", "optimizer")
    assert position(nodes["gradients/addmm"]) == ("forward", "gradients")
    assert position(nodes["optimizer/weight"]) == ("parameter", "optimizer")
    assert position(nodes["gradients/optimizer/weight"]) == ("backward", "optimizer")
    updates = [node for name, node in nodes.items() if name.startswith("optimizer/Adam/gradients/weight/")]
    assert {position(node) for node in updates} == {("optimizer", "gradients")}
    # By their names they would be parts of an optimizer and of a backward pass.
    assert position_by_name(nodes["optimizer/addmm"]).phase == "optimizer"


def test_what_is_recomputed_in_the_backward_pass_is_still_forward():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.ones(2, 3, requires_grad=True)
    nodes = nodes_of(
        lambda: checkpoint(model, x, use_reentrant=False).sum().backward(), modules={"model": model}
    )
    assert position(nodes["recompute/model/0/addmm"]) == ("forward", "model/0")


def test_writes_name_the_input_that_each_output_went_into():
    norm, total = nn.BatchNorm1d(3, affine=False), torch.zeros(2, 3)

    def step(x):
        y = norm(x)
        torch.add(y, 1.0, out=total)
        total.mul_(2.0)
        torch._foreach_add_([total, y], 1.0)
        return total[0]

    nodes = nodes_of(step, {"x": torch.rand(2, 3)})
    assert nodes["norm/native_batch_norm"].writes == (-1, -1, -1, 1, 2)  # without weight and bias
    assert [nodes["add"].inputs[place] for place in nodes["add"].writes] == ["add/const:0"]
    assert (nodes["mul_"].writes, nodes["foreach_add_"].writes) == ((0,), (0, 1))
    assert (nodes["select"].is_view, nodes["select"].writes) == (True, ())


def test_graphs_keep_what_engines_tell():
    for node in training(model=nn.Linear(3, 1)).values():
        (message,) = nodes_to_proto([node]).node
        read = node_of_proto(message)
        assert position(read) == position(node)
        assert (read.is_view, read.writes) == (node.is_view, node.writes)


def test_graphs_without_facts_are_told_by_names():
    (message,) = nodes_to_proto([Node("optimizer/SGD/model/fc/weight/add_", "aten::add_")]).node
    assert "_phase" not in message.attr
    node = node_of_proto(message)
    assert (phase_of(node), module_of(node)) == ("optimizer", "model/fc")


def test_answers_go_by_facts_and_not_by_names(tmp_path):
    """What happens in a model called optimizer is no update, and what `out` held before is no input."""
    model, result = nn.Linear(3, 1), torch.full((2, 1), float("nan"))

    def step(x):
        y = model(x)
        torch.log((y - y).detach(), out=result)
        return (result * 1.0).sum()

    session = tt.torch.Session(step, modules={"optimizer": model})
    watched = tt.DumpingDebugWrapperSession(session, tmp_path)
    watched.run(None, {"x": torch.ones(2, 3)})
    watched.close()
    found = search_session(SessionDir(tmp_path)).first_bad
    assert (found.node.name, found.cause.kind, found.phase) == ("log", "log-of-zero", "forward")
