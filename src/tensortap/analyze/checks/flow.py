"""How rules read the graph of a run: what made a value, and what the backward pass went through."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator

from tensortap.analyze.health import Health
from tensortap.analyze.run_facts import RunFacts
from tensortap.phases import SOURCES
from tensortap.records import Frame, Node, split_tensor_name

__all__ = ["MATRIX_PRODUCTS", "NORMALISATIONS", "Flow", "flow_of", "line_of_use", "place_of", "root_of"]

MATRIX_PRODUCTS = ("addmm", "mm", "convolution", "baddbmm", "bmm")
NORMALISATIONS = ("batch_norm", "layer_norm", "group_norm", "rms_norm", "instance_norm", "weight_norm")
_COPIES = ("clone", "to_copy", "contiguous", "copy", "dropout", "native_dropout")
_FARTHEST = 64


class Flow:
    """What flows through the forward pass of one run.

    Args:
        facts: of the run.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts

    @functools.cached_property
    def by_operation(self) -> dict[str, list[str]]:
        """The nodes of the forward pass, by the canonical names of what they do."""
        found: dict[str, list[str]] = {}
        facts = self.facts
        for name, op_type in facts.op_types.items():
            if op_type not in SOURCES and facts.phase(name) == "forward":
                found.setdefault(facts.operation_named(op_type).name, []).append(name)
        return found

    @functools.cached_property
    def differentiated(self) -> frozenset[str]:
        """Names of the forward nodes that the backward pass went through."""
        found = set()
        for name in self.facts.op_types:
            if self.facts.phase(name) == "backward":
                found.add(self.facts.forward_name(name))
        return frozenset(each for each in found if each is not None)

    @property
    def trains(self) -> bool:
        """Whether some parameter got a gradient."""
        return bool(self.facts.gradients)

    @property
    def step(self) -> int:
        """The step of the run."""
        return max(self.facts.info.global_step, 0)

    def nodes(self, *operations: str) -> Iterator[Node]:
        """The nodes of the forward pass that do one of these."""
        for operation in operations:
            for name in self.by_operation.get(operation, ()):
                yield self.facts.nodes[name]

    def operation(self, tensor: str) -> str:
        """The canonical name of what made a tensor, empty if the run does not know."""
        node = self.facts.node_of(tensor)
        return "" if node is None or node.op_type in SOURCES else self.facts.operation(node).name

    def origin(self, tensor: str, through: Iterable[str] = _COPIES) -> str:
        """The tensor that this one was before it was reshaped, cast and copied."""
        for _ in range(_FARTHEST):
            node = self.facts.node_of(tensor)
            if node is None or not node.inputs or node.op_type in SOURCES:
                break
            operation = self.facts.operation(node)
            if not (operation.is_view and not operation.is_partial_view) and operation.name not in through:
                break
            # A copy in place has what was copied as its second input.
            tensor = node.inputs[1] if operation.name == "copy" and len(node.inputs) > 1 else node.inputs[0]
        return tensor

    def shape(self, tensor: str) -> tuple[int | None, ...] | None:
        """The shape of a tensor, as far as it is known."""
        health = self.facts.health(tensor)
        if health is not None and health.shape is not None:
            return health.shape
        spec = self.facts.spec(tensor)
        return None if spec is None else spec.shape

    def health(self, tensor: str) -> Health | None:
        """The health of a tensor, or of what it shows; None if its elements were not read."""
        health = self.facts.health_behind(tensor)
        return health if health is not None and health.was_read and not health.is_count else None

    def takers(self, tensor: str) -> list[tuple[Node, int]]:
        """The nodes of the forward pass that take a tensor, each with the place it takes it at."""
        return [
            (node, place)
            for node, place in self.facts.consumers(tensor)
            if self.facts.phase(node.name) == "forward"
        ]

    def reaches(self, tensor: str, wanted: Iterable[str], through: Iterable[str]) -> Node | None:
        """The first node of a wanted operation that takes a tensor, directly or after what may come between."""
        wanted, through = frozenset(wanted), frozenset(through)
        pending, seen = [tensor], {tensor}
        while pending and len(seen) < _FARTHEST:
            for node, _ in self.takers(pending.pop(0)):
                operation = self.facts.operation(node)
                if operation.name in wanted:
                    return node
                passed = operation.name in through or operation.name in _COPIES
                if (passed or (operation.is_view and not operation.is_partial_view)) and node.outputs:
                    output = node.tensor(0)
                    if output not in seen:
                        seen.add(output)
                        pending.append(output)
        return None

    def is_parameter(self, tensor: str) -> bool:
        """Whether a tensor is a parameter or buffer, or shows one."""
        return self.facts.variable_of(tensor) is not None

    @functools.cached_property
    def _dependent(self) -> dict[str, bool]:
        return {}

    def depends_on_parameters(self, tensor: str) -> bool:
        """Whether a tensor was worked out, among others, from parameters that got gradients."""
        known = self._dependent
        wanted = split_tensor_name(tensor)[0]
        pending, entered = [wanted], set()
        while pending:
            name = pending[-1]
            node = None if name in known else self.facts.nodes.get(name)
            if name in known:
                pending.pop()
            elif node is None or node.op_type in SOURCES:
                known[name] = name in self.facts.gradients
            else:
                makers = [split_tensor_name(each)[0] for each in node.inputs]
                if name in entered:  # and so all of them are known, but for those of a cycle
                    known[name] = any(known.get(each, False) for each in makers)
                else:
                    entered.add(name)
                    pending += [each for each in makers if each not in known and each not in entered]
        return known[wanted]

    def is_trained(self, node: Node) -> bool:
        """Whether the backward pass went through a node. Of an addition nothing is left to see but what comes next."""
        if node.name in self.differentiated:
            return True
        if not any(map(self.depends_on_parameters, node.inputs)):
            return False
        return any(taker.name in self.differentiated for taker, _ in self.takers(node.tensor()))

    @functools.cached_property
    def data(self) -> list[tuple[str, Node]]:
        """What comes into the trained part of models from outside of it, with the node that takes it.

        These are the inputs of a model as its first layer gets them: neither parameters and buffers, nor made of
        parameters that are trained.
        """
        found: dict[str, tuple[str, Node]] = {}
        for name in self.facts.op_types:
            if name not in self.differentiated:
                continue
            node = self.facts.nodes[name]
            if not node.module or root_of(node.module) not in self.models:
                continue
            for tensor in node.inputs:
                if not self.depends_on_parameters(tensor) and not self.is_parameter(tensor):
                    found.setdefault(tensor, (tensor, node))
        return list(found.values())

    @functools.cached_property
    def fed(self) -> frozenset[str]:
        """Models whose trained part is given what was made of parameters elsewhere, as by another model."""
        found = set()
        for name in self.facts.op_types:
            if name not in self.differentiated:
                continue
            node = self.facts.nodes[name]
            model = root_of(node.module or "")
            if model in found or model not in self.models:
                continue
            for tensor in node.inputs:
                maker = self.facts.node_of(tensor)
                if maker is None or maker.op_type in SOURCES or root_of(maker.module or "") == model:
                    continue
                if self.depends_on_parameters(tensor):
                    found.add(model)
        return frozenset(found)

    @functools.cached_property
    def models(self) -> frozenset[str]:
        """Names of the models whose parameters got gradients."""
        return frozenset(map(root_of, self.facts.gradients))


_FLOWS: weakref.WeakKeyDictionary[RunFacts, Flow] = weakref.WeakKeyDictionary()


def flow_of(facts: RunFacts) -> Flow:
    """What flows through a run; rules share it."""
    found = _FLOWS.get(facts)
    if found is None:
        found = _FLOWS[facts] = Flow(facts)
    return found


def place_of(frame: Frame | None) -> str:
    """A line in short, for sentences.

    >>> place_of(Frame("/home/me/train.py", 12, "step"))
    'train.py:12'
    """
    return "an unknown line" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line}"


def line_of_use(runs: Iterable[RunFacts], parameter: str) -> Frame | None:
    """The line at which a parameter is computed with, in the first run that knows."""
    for run in runs:
        flow = flow_of(run)
        pending = [f"{parameter}:0"]
        while pending:
            for node, _ in flow.takers(pending.pop()):
                if not run.operation(node).is_view:
                    return node.own_source
                pending.append(node.tensor())
    return None


def root_of(name: str) -> str:
    """The model that a node or module belongs to: the first part of its name.

    >>> root_of("model/layers/0/addmm")
    'model'
    """
    return name.partition("/")[0]
