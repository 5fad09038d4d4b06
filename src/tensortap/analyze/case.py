"""One bad output and what it was made of: what the rules for causes look at."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensortap.analyze.facts import phase_of
from tensortap.analyze.findings import Finding, InputHealth
from tensortap.analyze.health import Health, number_text
from tensortap.analyze.hidden import is_hidden
from tensortap.analyze.operands import operand
from tensortap.analyze.steps_in_one import first_bad_step
from tensortap.analyze.unwritten import unwritten_behind
from tensortap.analyze.vocabulary import vocabulary_of
from tensortap.analyze.vocabulary.canonical import LOADS, Operation
from tensortap.records import BadSample, Node

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts

__all__ = ["LARGEST", "VARIES", "Case", "element_text", "group_size"]

LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895e38,
    "float32": 3.4028e38,
    "float64": 1.7977e308,
    "float8_e5m2": 57344.0,
    "float8_e4m3fn": 448.0,
    "complex64": 3.4028e38,
    "complex128": 1.7977e308,
}


VARIES = "(varies)"
"""Stands in a graph for an argument that differs from run to run."""


class Case:
    """One bad output and what it was made of, as rules see it.

    Attributes:
        operation: what the operation is.
        op: its canonical name.
        word: what it is called in sentences.
        arguments: names of the tensors it was given that matter for this output, in the order of the call.
        out: health of the output.
        inputs: health and status of the inputs, each tensor once.
    """

    def __init__(self, finding: Finding, facts: RunFacts | None) -> None:
        self.finding = finding
        self.node = finding.node
        self._vocabulary = vocabulary_of(
            self.node.op_type, "" if facts is None else facts.circumstances.engine
        )
        self.inputs = finding.inputs
        self._facts = facts
        self._moment = None if facts is None else facts.bad_moment(self.node)
        self.arguments = list(self.node.inputs)
        self._between: npt.NDArray[Any] | None = None
        steps = self._vocabulary.steps(self.node.op_type, self.node.attributes)
        step = self._enter_step(steps) if steps else self.node.op_type
        self.operation: Operation = self._vocabulary.operation(step)
        self.op, self.word = self.operation.name, self.operation.word
        self.out = finding.health
        if steps and self.out.infinities:
            # What came after may have changed their sign.
            self.out = self.out._replace(neg_inf=self.out.infinities, pos_inf=self.out.infinities)
        self._by_name = {each.tensor: each for each in self.inputs}
        if self.operation.is_over_lists:
            # One tensor of every list.
            group = group_size(self.node, self.operation)
            self.arguments = self.arguments[finding.slot % group :: group]

    def _enter_step(self, steps: Sequence[str]) -> str:
        """The step that made the bad value, of several that are executed in one; what it was given is the input."""
        value = self.value(0)
        found = None if value is None else first_bad_step(steps, value)
        if found is None or not found.place:
            return steps[0]
        before = " and ".join(self._vocabulary.word_of(step) for step in steps[: found.place])
        name = f"{before} of {self.arguments[0]}"
        self.arguments, self._between = [name], found.given
        self.inputs = (InputHealth(name, Health.of_value(found.given), "good", None),)
        return steps[found.place]

    @property
    def loaded(self) -> list[tuple[str, Health, str]]:
        """The inputs that are storages put under a tensor, as `torch.load` and workers of a data loader do it.

        With the line at which that was done, as text; empty if unknown. Of what is a view of one, the whole.
        """
        found = []
        for each in self.inputs:
            whole = self._behind_views(each.tensor)
            if each.health is not None and self._name_of_maker(whole) == LOADS:
                known = None if self._facts is None else self._facts.health(whole)
                health = known if each.health.is_bad and known is not None else each.health
                found.append((whole, health, self._line_of_maker(whole)))
        return found

    def sample_behind(self, health: Health) -> BadSample | None:
        """The sample of a data set that a worker of a data loader made so, as far as it has told."""
        known = () if self._facts is None else self._facts.circumstances.bad_samples
        wanted = (health.elements, health.nan, health.neg_inf, health.pos_inf)
        mean = health.mean if math.isfinite(health.mean) else 0.0
        for each in known:
            counts = tuple(map(float, (each.elements, each.nan, each.neg_inf, each.pos_inf)))
            if counts == wanted and math.isclose(each.mean, mean, rel_tol=1e-5, abs_tol=1e-12):
                return each
        return None

    @property
    def writers(self) -> list[tuple[Node, Health]]:
        """What has written to the memory of the inputs through other names, and what it wrote."""
        if self._facts is None:
            return []
        nodes = [self._facts.nodes.get(name) for name in self._facts.writers_of(self.node)]
        known = [(node, self._facts.health(node.tensor(0))) for node in nodes if node is not None]
        return [(node, health) for node, health in known if health is not None]

    @property
    def unwritten(self) -> Node | None:
        """What made memory that the result goes back to, and that nobody was seen to write."""
        return None if self._facts is None else unwritten_behind(self._facts, self.node)

    @property
    def came_bad(self) -> bool:
        """Whether an input was bad already when it was made."""
        known = [] if self._facts is None else map(self._facts.health_behind, self.arguments)
        return any(each is not None and each.is_bad for each in known)

    @property
    def forward_op(self) -> str:
        """For a gradient, the canonical name of the operation it is the gradient of; otherwise empty."""
        forward = self._forward
        return "" if forward is None else forward.name

    @property
    def forward_word(self) -> str:
        """What that operation is called in sentences."""
        forward = self._forward
        return "" if forward is None else forward.word

    @property
    def _forward(self) -> Operation | None:
        if self.op.endswith("_backward"):
            return Operation(self.op.removesuffix("_backward"))
        if phase_of(self.node) != "backward":
            return None
        known = None if self._facts is None else self._facts.forward_of(self.node)
        if known is not None:
            return self._vocabulary.operation(known.op_type)
        named = self.node.forward
        # It ran before this run: all there is of it is the name of the gradient's scope.
        parts = named.split("/")[-1:] if named is not None else self.node.name.split("/")[-2:-1]
        label = parts[0] if parts else ""
        spelled = label.rstrip("0123456789").rstrip("_") if label[-1:].isdigit() else label
        return self._vocabulary.operation(spelled)

    @property
    def forward_input(self) -> tuple[str, Health] | None:
        """For a gradient, the input of the operation it is the gradient of, if its health is known."""
        forward = None if self._facts is None else self._facts.forward_of(self.node)
        if self._facts is None or forward is None or not forward.inputs:
            return None
        health = self._facts.health_behind(forward.inputs[0])
        return None if health is None else (forward.inputs[0], health)

    @property
    def is_hidden(self) -> bool:
        """Whether the result was not meant to be used: a `where` does not choose it, or what it belongs to."""
        return self._facts is not None and is_hidden(self._facts, self.node, self.finding.tensor)

    @property
    def unread_before(self) -> list[str]:
        """The tensors of the run that nobody could look at, from before this one was seen."""
        if self._facts is None:
            return []
        order = self._facts.order
        here = order.get(self.finding.tensor, len(order))
        return [each for each in self._facts.unread if order.get(each, here) < here]

    @property
    def first_user(self) -> str | None:
        """What takes the output first, and on which line."""
        if self._facts is None:
            return None
        for node, _ in self._facts.consumers(self.finding.tensor):
            if not self._facts.is_view(node):
                frame = node.source
                return (
                    node.name
                    if frame is None
                    else f"{node.name} ({os.path.basename(frame.file)}:{frame.line})"
                )
        return None

    def maker_of(self, tensor: str) -> str:
        """Canonical name of the operation that made a tensor, seen through views."""
        return self._name_of_maker(self._behind_views(tensor))

    def _behind_views(self, tensor: str) -> str:
        """The tensor that this one is a view of; itself if it is none."""
        for _ in range(100):
            node = None if self._facts is None else self._facts.node_of(tensor)
            if self._facts is None or node is None or not self._facts.is_view(node) or not node.inputs:
                break
            tensor = node.inputs[0]
        return tensor

    def _name_of_maker(self, tensor: str) -> str:
        node = None if self._facts is None else self._facts.node_of(tensor)
        return "" if self._facts is None or node is None else self._facts.operation(node).name

    def _line_of_maker(self, tensor: str) -> str:
        node = None if self._facts is None else self._facts.node_of(tensor)
        return f"{node.stack[-1].file}:{node.stack[-1].line}" if node is not None and node.stack else ""

    def comes_of(self, tensor: str, op: str, through: frozenset[str]) -> bool:
        """Whether a tensor was made of the output of an operation by nothing but these others, and views."""
        pending = [tensor]
        for _ in range(20):
            if not pending or self._facts is None:
                return False
            node = self._facts.node_of(pending.pop(0))
            if node is None:
                continue
            name = self._facts.operation(node).name
            if name == op:
                return True
            if name in through:
                pending += node.inputs
            elif self._facts.is_view(node):
                pending += node.inputs[:1]
        return False

    def named(self, place: int) -> str:
        """An input as the program's own line calls it, if that is plain to see, and its name in the graph."""
        said = operand(self.finding.source_text, self.word, place, self._vocabulary.modules)
        return self.arguments[place] if said is None else f"`{said}` ({self.arguments[place]})"

    def input(self, place: int) -> InputHealth | None:
        """The input at one place of the call, None if there is none or it does not matter."""
        return self._by_name.get(self.arguments[place]) if place < len(self.arguments) else None

    def health(self, place: int) -> Health | None:
        """Its health, None if unknown."""
        found = self.input(place)
        return None if found is None or found.health is None or not found.health.was_read else found.health

    def part(self, part: str) -> Health | None:
        """Health of the input that plays a part in the operation; the first, if it has no such part."""
        return self.health(self.operation.place_of(part))

    @property
    def variable(self) -> str:
        """The variable that the node reads, by its own name."""
        found = None if self._facts is None else self._facts.variable_of(self.finding.tensor)
        return found or self.node.name

    def name_of(self, part: str) -> str:
        """The tensor that plays a part in the operation."""
        return self.arguments[self.operation.place_of(part)]

    def api(self, function: str) -> str:
        """What a user of the framework calls a function that advice speaks of."""
        return self._vocabulary.api.get(function, function.replace("_", " "))

    def has_api(self, function: str) -> bool:
        """Whether the framework has a word of its own for it."""
        return function in self._vocabulary.api

    def output(self, slot: int) -> Health | None:
        """Health of another output of the same node, None if unknown."""
        return None if self._facts is None else self._facts.health(self.node.tensor(slot))

    @property
    def given(self) -> list[Health]:
        """Health of the inputs in their places, as far as known; one that is given twice counts twice."""
        healths = [self.health(place) for place in range(len(self.arguments))]
        return [each for each in healths if each is not None and each.finite]

    def number(self, part: str) -> float | None:
        """The argument that plays a part, if it is a number."""
        for name in self.operation.numbers.get(part, ()):
            value = self.node.attributes.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
        return self.operation.constants.get(part)

    def varies(self, part: str) -> bool:
        """Whether the argument that plays a part is a number that differs from run to run: only the last is known."""
        return any(self.node.attributes.get(name) == VARIES for name in self.operation.numbers.get(part, ()))

    @property
    def largest(self) -> float:
        """The largest finite number of the output's dtype."""
        return LARGEST.get(self.dtype, math.inf)

    @property
    def dtype(self) -> str:
        """Dtype of the output."""
        if self.out.dtype:
            return self.out.dtype
        specs = self.node.outputs
        return specs[self.finding.slot].dtype if self.finding.slot < len(specs) else ""

    def value(self, place: int) -> npt.NDArray[Any] | None:
        """The value of an input, if it was recorded."""
        if self._between is not None:
            return self._between
        if self._facts is None or place >= len(self.arguments):
            return None
        value = self._facts.value_at(self.arguments[place], self._moment)
        return None if value is None else np.asarray(value)

    def which_execution(self) -> str | None:
        """A sentence about the execution that went bad, if there were several in the run."""
        executions = [] if self._facts is None else self._facts.executions.get(self.finding.tensor, ())
        for number, each in enumerate(executions, start=1):
            if each.health is not None and each.health.is_bad:
                return f"It was execution {number} of {len(executions)} in this run."
        return None

    def done_in_one(self) -> str | None:
        """A sentence about the operations of the program that the runtime has made one of."""
        fused = self.node.attributes.get("fused")
        return f"Executed in one: {', '.join(fused)}." if isinstance(fused, list) and fused else None

    def where(self) -> tuple[tuple[int, ...], Any] | None:
        """The first bad element of the output and its value, if that was recorded."""
        value = None if self._facts is None else self._facts.value_at(self.finding.tensor, self._moment)
        if value is None:
            return None
        try:
            bad = ~np.isfinite(np.asarray(value))
        except TypeError:
            return None
        if not bad.any():
            return None
        index = tuple(int(each) for each in np.unravel_index(int(bad.argmax()), bad.shape))
        return index, value[index]

    def only_sample(self) -> str | None:
        """A sentence about the only sample of a batch that is bad, if there is only one, and there are several."""
        value = None if self._facts is None else self._facts.value_at(self.finding.tensor, self._moment)
        if value is None or np.ndim(value) < 2 or len(value) < 2 or self.finding.phase != "forward":
            return None
        try:
            bad = ~np.isfinite(np.asarray(value))
        except TypeError:
            return None
        rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
        if len(rows) != 1:
            return None
        return f"Only row {int(rows[0])} of {len(bad)} is bad: along the first dimension, one sample of the batch."

    def element_sentence(self, index: tuple[int, ...], value: Any, behind: str = "") -> str:
        """What the first bad element is, and what it was made of."""
        subject = f"The first bad element is {self.place_text(index)}:" if index else "Its value is"
        return f"{subject} {element_text(value)}{behind}."

    def place_text(self, index: tuple[int, ...]) -> str:
        """An element of the output, as the program would index it; of a sparse tensor only stored values are known."""
        places = None if self._facts is None else self._facts.places(self.finding.tensor)
        spec = None if self._facts is None else self._facts.spec(self.finding.tensor)
        if places is None:
            is_stored = spec is not None and len(spec.shape) != len(index)
            return f"{list(index)}" + (" of the stored values" if is_stored else "")
        first, inner = [int(each) for each in places[:, index[0]]], list(index[1:])
        if inner and spec is not None and len(spec.shape) == len(first) == len(inner):  # of a block
            whole = [start + offset for start, offset in zip(first, inner, strict=True)]
        else:
            whole = [*first, *inner]
        return f"{whole}" + (f" (row {whole[0]}, column {whole[1]})" if len(whole) == 2 else "")

    def at(self, place: int, index: tuple[int, ...]) -> Any | None:
        """The element of an input that went into one element of the output, for elementwise operations."""
        value, found = self.value(place), self.where()
        if value is None or found is None or self.out.shape is None:
            return None
        try:
            return np.broadcast_to(value, self.out.shape)[index]
        except (ValueError, IndexError):  # the summary is of a part of a tensor, the value of all of it
            return None

    def first_element(self) -> str | None:
        """A sentence about the first bad element, for operations that work element by element."""
        found = self.where()
        if found is None:
            return None
        index, value = found
        given = [(place, self.at(place, index)) for place in range(len(self.arguments))]
        parts = [
            f"{self.arguments[place]} is {element_text(each)}" for place, each in given if each is not None
        ]
        behind = f", where {' and '.join(parts)}" if parts else ""
        return self.element_sentence(index, value, behind)


def group_size(node: Node, operation: Operation) -> int:
    """How many tensors one list of an operation over lists holds."""
    for name in operation.numbers.get("list_length", ()):
        size = node.attributes.get(name)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return max(len(node.outputs), 1)


def element_text(value: Any) -> str:
    """One element of a tensor, for a sentence."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number_text(number) if math.isfinite(number) else str(number)
