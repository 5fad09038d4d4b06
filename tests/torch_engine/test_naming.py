"""What nodes are called, which line they come from, and which forward node a gradient belongs to."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensortap as tt
from tests.torch_engine.zoo import ZOO

pytestmark = pytest.mark.usefixtures("interceptor")


def nodes_of(step, feeds=None, **options):
    session = tt.torch.Session(step, **options)
    metadata = tt.RunMetadata()
    session.run(None, feeds or {}, tt.RunOptions(output_partition_graphs=True), metadata)
    return {node.name: node for node in metadata.nodes}


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        scores = self.query(x) @ x.transpose(-1, -2)
        return scores.softmax(-1) * self.scale


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)[..., :4]
        return x


def test_forward_ops_are_named_by_module_path_and_op():
    encoder = Block()
    nodes = nodes_of(lambda x: encoder(x), {"x": torch.ones(1, 4, 4)}, modules={"encoder": encoder})
    softmax = nodes["encoder/layers/0/softmax"]
    assert softmax.op_type == "aten::_softmax"
    assert softmax.source.line == line_of(Attention.forward, "softmax")
    assert softmax.source.file == __file__
    assert nodes["encoder/layers/1/query/addmm"].inputs[0] == "encoder/layers/1/query/bias:0"
    assert nodes["encoder/layers/0/scale"].op_type == "Variable"
    assert nodes["x"].op_type == "Placeholder"


def test_the_stack_runs_from_the_training_loop_to_the_op():
    encoder = Block()
    nodes = nodes_of(lambda x: encoder(x), {"x": torch.ones(1, 4, 4)}, modules={"encoder": encoder})
    functions = [frame.function for frame in nodes["encoder/layers/0/softmax"].stack]
    assert functions[-2:] == ["Block.forward", "Attention.forward"]
    assert functions[-3].endswith("<lambda>")


def test_gradients_are_named_after_their_forward_node_and_carry_its_line():
    encoder = Block()

    def step(x):
        encoder(x).square().sum().backward()

    nodes = nodes_of(step, {"x": torch.ones(1, 4, 4)}, modules={"encoder": encoder})
    backward = nodes["gradients/encoder/layers/0/softmax/softmax_backward_data"]
    assert backward.forward == "encoder/layers/0/softmax"
    assert backward.source.line == line_of(Attention.forward, "softmax")
    complete = nodes["gradients/encoder/layers/1/query/weight"]
    assert complete.op_type == "AccumulateGrad"
    assert complete.forward == "encoder/layers/1/query/weight"


@pytest.mark.parametrize("name", sorted(set(ZOO) - {"higher_order_cond"}))
def test_every_gradient_op_knows_its_forward_node(name):
    case = ZOO[name]()
    nodes = nodes_of(case.step, case.batch(0), modules=case.modules, optimizers=case.optimizers)
    gradients = [n for n in nodes.values() if n.name.startswith("gradients/")]
    for node in gradients:
        if node.op_type in ("AccumulateGrad", "Const"):
            continue
        if node.forward is None:
            # Summing up several gradients of one parameter belongs to the parameter, not to an op.
            assert any(node.name.startswith(f"gradients/{leaf}/") for leaf in nodes), node.name
        else:
            assert node.forward in nodes
            assert node.source is not None


def test_a_custom_backward_carries_its_own_line():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2  # the line

    x = torch.ones(2, requires_grad=True)
    nodes = nodes_of(lambda: Doubled.apply(x).sum().backward())
    assert nodes["gradients/mul/mul"].forward == "mul"
    assert nodes["gradients/mul/mul"].source.line == line_of(Doubled.backward, "# the line")


def test_writing_through_a_view_is_attributed_to_the_writing_op():
    x = torch.ones(4, requires_grad=True)

    def step():
        y = x * 1
        y[1] = 5.0
        y.exp().sum().backward()

    nodes = nodes_of(step)
    assert any(node.forward == "copy_" for node in nodes.values())
    assert {node.forward for name, node in nodes.items() if name.startswith("gradients/exp/")} == {"exp"}


def test_the_optimizer_is_a_scope_of_its_own():
    model = nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters(), foreach=False)
    sgd = torch.optim.SGD(model.parameters(), foreach=True)

    def step():
        model(torch.ones(1, 2)).sum().backward()
        adam.step()
        sgd.step()

    session = tt.torch.Session(step)
    for _ in range(2):  # the first step makes the state, which later ones find
        session.run("model/addmm:0")
    nodes = {node.name: node for node in session.graph.nodes}
    assert nodes["optimizer/Adam/model/weight/exp_avg"].op_type == "Variable"
    update = nodes["optimizer/Adam/model/weight/addcdiv_"]
    assert update.source.line == line_of(step, "adam.step")
    assert nodes["optimizer/SGD/foreach_add_"].inputs[:2] == (
        "optimizer/Adam/model/weight/addcdiv_:0",
        "optimizer/Adam/model/bias/addcdiv_:0",
    )


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_ops_are_told_from_the_first_computation(use_reentrant):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3, requires_grad=True)
    nodes = nodes_of(
        lambda: checkpoint(model, x, use_reentrant=use_reentrant).sum().backward(), modules={"model": model}
    )
    assert "model/1/tanh" in nodes
    assert nodes["recompute/model/0/addmm"].source is not None
    gradient = "gradients/recompute/model/1/tanh" if use_reentrant else "gradients/model/1/tanh"
    assert any(name.startswith(gradient) for name in nodes)


def test_a_parameter_called_like_an_op_keeps_its_name():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.mul = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.mul

    odd = Odd()
    nodes = nodes_of(lambda x: odd(x), {"x": torch.ones(2)}, modules={"odd": odd})
    assert nodes["odd/mul"].op_type == "Variable"
    assert nodes["odd/mul_1"].op_type == "aten::mul"


def test_odd_module_names_become_valid_node_names():
    model = nn.ModuleDict({"conv 1": nn.Linear(2, 2), "a:b": nn.Linear(2, 2)})
    nodes = nodes_of(
        lambda x: model["a:b"](model["conv 1"](x)), {"x": torch.ones(1, 2)}, modules={"m": model}
    )
    assert {"m/conv_1/addmm", "m/a_b/addmm"} <= set(nodes)


def test_a_data_dependent_branch_reports_the_line_that_ran():
    def step(flag, x):
        if flag:
            y = x.sin()  # first
        else:
            y = x.sin()  # second
        return y

    session = tt.torch.Session(step)
    for flag, mark in ((True, "# first"), (False, "# second"), (True, "# first")):
        metadata = tt.RunMetadata()
        options = tt.RunOptions(output_partition_graphs=True)
        session.run(None, {"flag": flag, "x": torch.ones(1)}, options, metadata)
        (sine,) = [node for node in metadata.nodes if node.name == "sin"]
        assert sine.source.line == line_of(step, mark)


def test_in_place_ops_are_new_outputs_and_stale_views_name_the_writer():
    def step(x):
        y = x + 0
        view = y[0]
        y.mul_(2)
        return view + 1

    nodes = nodes_of(step, {"x": torch.ones(2)})
    assert nodes["mul_"].inputs == ("add:0",)
    consumer = nodes["add_1"]
    assert consumer.inputs == ("select:0",)
    assert consumer.control_inputs == ("mul_",)


def test_tensors_of_nested_inputs_are_placeholders_by_path():
    nodes = nodes_of(
        lambda batch: batch["ids"] + batch["pair"][1],
        {"batch": {"ids": torch.ones(2), "pair": (torch.ones(2), torch.ones(2) * 3)}},
    )
    assert nodes["add"].inputs == ("batch/ids:0", "batch/pair/1:0")


def test_an_unregistered_module_is_named_by_its_class():
    loss = {"function": nn.MSELoss()}
    nodes = nodes_of(lambda x: loss["function"](x, x * 2), {"x": torch.ones(2)})
    assert "MSELoss/mse_loss" in nodes
