"""Replays a recorded run op by op, from nothing but its nodes and the values that came from outside.

If every output comes out bit for bit as it was recorded, then the record is complete: no op is missing, every
input is the right one, and every argument is known.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tensortap.engines.torch.schema import op_of
from tensortap.records import Node
from tensortap.seam.options import RunMetadata, RunOptions

SOURCES = ("Placeholder", "Variable", "Const")
GARBAGE = (
    "aten::empty",
    "aten::new_empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty_strided",
)
WORKSPACE = 3  # slot of a buffer with padding that nobody initialises


@dataclass
class Recording:
    """All a run left: nodes in order, a copy of every tensor, the generator's state before random ops."""

    nodes: list[Node] = field(default_factory=list)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    generators: list[torch.Tensor] = field(default_factory=list)
    result: object = None

    def tap(self, node, slot, tensor):
        assert node.tensor(slot) not in self.values, f"{node.tensor(slot)} was tapped twice"
        self.values[node.tensor(slot)] = tensor.detach().clone()


class GeneratorStates(TorchDispatchMode):
    """Notes the generator's state in front of every op that draws from it."""

    supports_higher_order_operators = True

    def __init__(self, into):
        super().__init__()
        self.into = into

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if is_random(func):
            self.into.append(torch.get_rng_state())
        return func(*args, **(kwargs or {}))


def is_random(func):
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def record(make_session, case, run):
    """Run a case once and keep everything."""
    recording = Recording()
    metadata = RunMetadata()

    @functools.wraps(case.step)
    def step(**batch):
        with GeneratorStates(recording.generators):
            return case.step(**batch)

    session = make_session(case, step)
    recording.result = session.run(
        None, case.batch(run), options=RunOptions(taps=[recording.tap]), run_metadata=metadata
    )
    assert session.faults == 0
    recording.nodes = metadata.nodes
    return recording


def replay(recording):
    """Execute the nodes again; yields (node, slot, replayed, recorded) for every value."""
    tensors: dict[str, torch.Tensor] = {}
    generators = iter(recording.generators)
    for node in recording.nodes:
        missing = [name for name in node.inputs if name not in tensors]
        assert not missing, f"{node.name} takes {missing}, which no node has made"
        if node.op_type in SOURCES or node.op_type.startswith("higher_order::"):
            # A higher-order operator takes functions, which are no tensors: its outputs are taken as given.
            outputs = [recording.values[node.tensor(slot)].clone() for slot in range(len(node.outputs))]
        elif node.op_type == "AccumulateGrad":
            outputs = [tensors[node.inputs[0]]]
        else:
            outputs = call(node, [tensors[name] for name in node.inputs], generators)
        assert len(outputs) == len(node.outputs), node
        for slot, output in enumerate(outputs):
            tensors[node.tensor(slot)] = output
            if node.op_type not in GARBAGE and (node.op_type, slot) != ("aten::mkldnn_rnn_layer", WORKSPACE):
                yield node, slot, output, recording.values[node.tensor(slot)]


def call(node, inputs, generators):
    """Call the operator of a node with its recorded arguments."""
    namespace, _, name = node.op_type.partition("::")
    overload = node.attributes.get("overload") or "default"
    func = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    op = op_of(func)
    args, kwargs = arguments(func, node, iter(inputs))
    if is_random(func):
        torch.set_rng_state(next(generators))
    if node.op_type == "aten::mkldnn_rnn_layer":  # returns a workspace when its inputs require a gradient
        args = [a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
        with torch.enable_grad():
            return [output.detach() for output in func(*args, **kwargs)]
    with torch.no_grad():
        result = func(*args, **kwargs)
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    written = op.written(args, kwargs) if op.writes else []
    return outputs + [t for t in written if not any(t is each for each in outputs)]


def arguments(func, node, inputs):
    args, kwargs = [], {}
    for argument in func._schema.arguments:
        name, kind = argument.name, str(argument.type)
        if "Tensor" in kind and name not in node.attributes:
            value = next(inputs)
        elif "List[" in kind and "Tensor" in kind and node.attributes[name] is not None:
            shape = node.attributes[name]
            gaps = [True] * shape if isinstance(shape, int) else shape
            value = [next(inputs) if there else None for there in gaps]
        elif name in node.attributes:
            value = decoded(node.attributes[name], kind)
        else:
            continue
        if argument.kwarg_only:
            kwargs[name] = value
        else:
            args.append(value)
    assert next(inputs, None) is None, f"{node.name} has more inputs than its schema takes"
    return args, kwargs


def decoded(value, kind):
    if isinstance(value, dict) and "complex" in value:
        return complex(*value["complex"])
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    if isinstance(value, str) and kind.removeprefix("Optional[").startswith("Device"):
        return torch.device(value)
    return value


def same_bits(a, b):
    """Whether two tensors are equal to the bit, NaNs included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.layout is not torch.strided:
        return torch.equal(a.to_dense(), b.to_dense())
    a, b = a.resolve_conj().contiguous(), b.resolve_conj().contiguous()
    if a.numel() == 0:
        return True
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
