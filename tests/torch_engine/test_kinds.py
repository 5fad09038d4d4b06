"""Nodes that differ in their names only are decoded once, and are what they would be if each were decoded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.errors import OpError
from tests.torch_engine.test_repeating import counted
from tests.torch_engine.zoo import ZOO

WATCH = tt.RunOptions(output_partition_graphs=True)


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "native")


def executed(step, batches=({},), **known):
    """The nodes of each run of a new session."""
    session = tt.torch.Session(step, **known)
    runs = []
    for batch in batches:
        metadata = tt.RunMetadata()
        session.run(None, batch, WATCH, metadata)
        runs.append(metadata.nodes)
    return runs


def both_ways(monkeypatch, execute):
    """What is found with and without kinds, from the same line."""
    found = []
    for _ in range(2):
        found.append(execute())
        monkeypatch.setattr(Nodes, "_new_kind", lambda self, *given: 0)
    return found


def of_zoo(name):
    torch.manual_seed(0)
    case = ZOO[name]()
    batches = [case.batch(run) for run in range(2)]
    return executed(case.step, batches, modules=case.modules, optimizers=case.optimizers)


# PyTorch writes new code, under a new name, for every execution of a higher-order operator.
@pytest.mark.parametrize("name", sorted(ZOO.keys() - {"higher_order_cond"}))
def test_nodes_are_as_if_each_had_been_decoded(name, monkeypatch):
    by_kinds, one_by_one = both_ways(monkeypatch, lambda: of_zoo(name))
    assert by_kinds == one_by_one


@pytest.mark.parametrize("layers", [3, 30])
def test_layers_that_are_alike_are_decoded_once(layers, monkeypatch):
    decoded = counted(monkeypatch, "begin")
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(4, 4), nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step(x):
        model(x).sum().backward()
        optimizer.step()

    (nodes,) = executed(step, [{"x": torch.ones(2, 4)}])
    assert len(decoded) < 25, "however many layers there are"
    assert {f"model/{2 * layer}/addmm" for layer in range(layers)} <= {node.name for node in nodes}


def scaled(x, factor):
    return x.mul(factor)


def outer(x):
    return scaled(x, 2.0)


def other(x):
    return scaled(x, 2.0)


PROGRAMS = {
    "lines": lambda x: outer(x) + other(x),
    "numbers of other types": lambda x: [x * factor for factor in (1, 1.0, True, 0.0, -0.0, 2, 2.0)],
    "shapes": lambda x: [x[: size + 1].sum(0) for size in range(3)],
    "dtypes": lambda x: [x.to(dtype).neg() for dtype in (torch.float64, torch.float16, torch.int32)],
    "aliases": lambda x: [torch.add(a, b, out=b) for a, b in ((x.clone(), x.clone()), 2 * (x.clone(),))],
    "lists": lambda x: [torch.cat([x] * count) for count in (1, 2, 3)],
    "absent tensors": lambda x: [
        nn.functional.layer_norm(x, [3], weight, None) for weight in (None, torch.ones(3))
    ],
    "random": lambda x: [x.clone().bernoulli_(0.5, generator=g) for g in (None, torch.Generator())],
    "several outputs": lambda x: [each.mul(2) for count in (1, 3) for each in x.split(count)],
    "complex": lambda x: [x * number for number in (1j, complex(0.0, -0.0), complex(-0.0, 0.0))],
    "dimensions": lambda x: [x.sum(dims) for dims in ([0], [1], [0, 1])],
    "names of modes": lambda x: [torch.div(x, 2, rounding_mode=mode) for mode in (None, "floor", "trunc")],
    "views": lambda x: [x.view(shape).t() for shape in ((3, 3), (9, 1), (1, 9))],
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_what_differs_is_told_apart(name, monkeypatch):
    def step(x):
        PROGRAMS[name](x)

    batches = [{"x": torch.ones(3, 3)}] * 3
    by_kinds, one_by_one = both_ways(monkeypatch, lambda: executed(step, batches))
    assert by_kinds == one_by_one


def test_an_op_that_fails_is_named_although_one_like_it_is_known():
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    model[2].weight = nn.Parameter(torch.ones(2, 2))
    session = tt.torch.Session(lambda x: model(x), modules={"model": model})
    with pytest.raises(OpError) as raised:
        session.run("model/0/addmm:0", {"x": torch.ones(2, 3)})
    assert raised.value.node.name == "model/2/addmm"
    assert raised.value.node.op_type == "aten::addmm"
    assert raised.value.node.inputs[1] == "model/1/addmm:0"
