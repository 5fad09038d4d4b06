"""Graphs as GraphDef messages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tensorboard.compat.proto.graph_pb2 import GraphDef
from torch import nn

import tensortap as tt
from tensortap.analyze.facts import node_of_proto
from tensortap.dtypes import DTYPE_NUMBERS
from tensortap.wire.graph_def import GraphEncoder, nodes_to_proto


def trained_session():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        y = model(x) * 1
        y[0] = 0.0
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    session = tt.torch.Session(step)
    session.run("model/2/relu:0", {"x": torch.randn(2, 1, 5, 5)})
    return session


def test_the_graph_survives_serialisation():
    session = trained_session()
    message = GraphDef.FromString(session.graph_def.SerializeToString())
    assert [node.name for node in message.node] == [node.name for node in session.graph.nodes]
    by_name = {node.name: node for node in message.node}
    convolution = by_name["model/0/convolution"]
    assert convolution.op == "aten::convolution"
    assert list(convolution.input) == ["x", "model/0/weight", "model/0/bias"]
    assert list(convolution.attr["stride"].list.i) == [1, 1]
    assert convolution.attr["T"].type == DTYPE_NUMBERS["float32"]
    assert [d.size for d in convolution.attr["_output_shapes"].list.shape[0].dim] == [2, 2, 3, 3]
    assert b"test_graph_def.py" in convolution.attr["_source"].list.s[-1]
    assert by_name["gradients/model/2/relu/threshold_backward"].attr["_forward"].s == b"model/2/relu"


def test_every_input_of_the_message_is_a_node_of_it():
    message = trained_session().graph_def
    names = {node.name for node in message.node}
    for node in message.node:
        for name in node.input:
            assert name.lstrip("^").partition(":")[0] in names


def test_the_executed_graph_comes_with_the_run():
    session = tt.torch.Session(lambda x: x.sin().cos())
    metadata = tt.RunMetadata()
    session.run(None, {"x": torch.ones(2)}, tt.RunOptions(output_partition_graphs=True), metadata)
    (graph,) = metadata.partition_graphs
    assert [node.name for node in graph.node] == ["x", "sin", "cos"]


def test_an_encoded_graph_is_the_message_byte_by_byte():
    """Nodes that are alike are encoded by what they share, also in the graph after the next."""
    odd = {"big": 2**80, "mixed": [1, None], "none": None, "flag": False, "lr": 0.1, "empty": [], "zero": 0}
    shared = tt.Node("a/b", "op", ("x:0", "y:1"), attributes=odd, module="a", phase="forward", forward="f")
    nodes = [
        *trained_session().graph.nodes,
        shared,
        replace(shared, name="ä/" + "b" * 300, module="ä", inputs=("z:0",) * 200, control_inputs=("c",)),
        replace(shared, name="no/forward", forward=None),
        replace(shared, name="no/module", module=None),
        replace(shared, name="no/phase", phase=""),
        replace(shared, name="other/device", device="/job:localhost/replica:0/task:0/device:CPU:1"),
        replace(shared, name="a/view", is_view=True, writes=(-1, 0)),
        tt.Node("nothing", ""),
    ]
    encoder = GraphEncoder()
    for graph in (nodes, nodes[::2], nodes, [replace(node, control_inputs=("w",)) for node in nodes]):
        assert encoder.encoded(graph) == nodes_to_proto(graph).SerializeToString(deterministic=True)


def test_odd_attributes_are_written_as_text():
    node = tt.Node("n", "op", attributes={"big": 2**80, "mixed": [1, None], "none": None, "flag": True})
    (message,) = nodes_to_proto([node, node]).node
    assert message.attr["big"].s == str(2**80).encode()
    assert list(message.attr["mixed"].list.s) == [b"1", b"None"]
    assert message.attr["flag"].b is True


def test_numbers_come_back_as_they_were():
    numbers = {
        "lr": 0.1,
        "least": torch.finfo(torch.float64).min,
        "tiny": 1e-300,
        "half": 0.5,
        "below": -math.inf,
        "betas": [0.9, 0.999],
        "halves": [0.5, math.inf],
        "whole": 3,
    }
    message = GraphDef.FromString(
        nodes_to_proto([tt.Node("n", "op", attributes=numbers)]).SerializeToString()
    ).node[0]
    assert dict(node_of_proto(message).attributes) == numbers
    assert message.attr["lr"].f == pytest.approx(0.1), "for those who read the field's message"
    exact = {key.removeprefix("_exact_") for key in message.attr if key.startswith("_exact_")}
    assert exact == {"lr", "least", "tiny", "betas"}, "what does not fit 32 bits"


def test_a_graph_that_was_written_without_the_exact_numbers_can_be_read():
    message = nodes_to_proto([tt.Node("n", "op", attributes={"lr": 0.1, "betas": [0.9, 0.999]})]).node[0]
    del message.attr["_exact_lr"], message.attr["_exact_betas"]
    read = node_of_proto(message).attributes
    assert (read["lr"], read["betas"]) == (pytest.approx(0.1), pytest.approx([0.9, 0.999]))
