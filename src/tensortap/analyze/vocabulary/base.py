"""A framework's names of operations, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensortap.analyze.vocabulary.canonical import Operation

__all__ = ["OWN_TYPES", "Vocabulary"]

OWN_TYPES = {"AccumulateGrad": "accumulate_grad"}
"""Types of nodes that are ours and not the framework's, as far as they are operations."""


@dataclass(frozen=True)
class Vocabulary:
    """Maps the op types of one framework to canonical operations.

    Attributes:
        aliases: names that mean the same, as `plain` spells them, and by which one they are called in sentences.
        canonical: canonical names by those of the framework; a name that is not listed is canonical.
        inputs: places of the tensors that an operation is given, by canonical name and the part they play.
        outputs: likewise of what it returns.
        numbers: names of the arguments that are plain numbers, by the part they play; the same for all operations.
        constants: numbers that an operation stands for by its very name, by that name and the part they play.
        communication: found in the op types of operations whose outputs come from other ranks.
        hidden_writes: places of inputs and outputs that operations write into although their names do not say so.
        control_inputs_write: a control input says that memory was written, and not only what has to wait for what.
        api: what a user calls functions that advice speaks of.
        modules: what programs call the modules that operations are functions of.
    """

    aliases: Mapping[str, str]
    canonical: Mapping[str, str]
    inputs: Mapping[str, Mapping[str, int]]
    numbers: Mapping[str, tuple[str, ...]]
    communication: re.Pattern[str]
    outputs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    hidden_writes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    control_inputs_write: bool = False
    api: Mapping[str, str] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    _known: dict[str, Operation] = field(default_factory=dict, repr=False)

    def operation(self, op_type: str) -> Operation:
        """What an operation is, worked out once."""
        found = self._known.get(op_type)
        if found is None:
            found = self._known[op_type] = self._operation(op_type)
        return found

    def word_of(self, op_type: str) -> str:
        """What an operation is called in sentences."""
        plain = self.plain(op_type)
        return self.aliases.get(plain, plain)

    def plain(self, op_type: str) -> str:
        """An op type without what has no meaning here: its namespace, how it is done."""
        return op_type.lower()

    def is_in_place(self, op_type: str) -> bool:
        """Whether the name says that an operation writes into its first inputs."""
        return False

    def is_over_lists(self, op_type: str) -> bool:
        """Whether the name says that an operation works on lists of tensors in parallel."""
        return False

    def fills_an_argument(self, attributes: Mapping[str, Any]) -> bool:
        """Whether a call was given a tensor to put its result into, whatever that held."""
        return False

    def steps(self, op_type: str, attributes: Mapping[str, Any]) -> Sequence[str]:
        """The op types that are executed, one after the other, by an operation that does several in one."""
        return ()

    def _operation(self, op_type: str) -> Operation:
        word = self.word_of(op_type)
        name = OWN_TYPES.get(op_type) or self.canonical.get(word, word)
        return Operation(
            name,
            word,
            inputs=self.inputs.get(name, {}),
            outputs=self.outputs.get(name, {}),
            numbers=self.numbers,
            constants=self.constants.get(self.plain(op_type), {}),
            is_in_place=self.is_in_place(op_type),
            is_over_lists=self.is_over_lists(op_type),
            communicates=self.communication.search(op_type) is not None,
            hidden_writes=self.hidden_writes.get(name, ()),
        )
