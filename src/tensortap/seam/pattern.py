"""Patterns over tensors: which outputs of which nodes a watch means, as plain data.

A pattern is carried by a watch whose node name is `*`. It is matched against every node an engine executes,
so it covers nodes that nobody had seen when the watch was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache

from tensortap.records import Node

__all__ = ["TensorPattern"]


@dataclass(frozen=True, slots=True)
class TensorPattern:
    """Regular expressions over node name, op type and dtype; each is matched at the start of its text.

    A tensor matches if every allow list that is given matches and no deny list does. Name and op type decide
    for a whole node, dtype for each output. Views, whose memory another node's record already shows, are meant
    only by a pattern that allows nodes by name or op type.

    Raises:
        ValueError: a regular expression that does not compile; the message names the argument.
        TypeError: one that is no text.

    >>> from tensortap.records import TensorSpec
    >>> node = Node("model/fc/addmm", "aten::addmm", outputs=(TensorSpec("float32", (2,)),))
    >>> TensorPattern(node_name_regex_allowlist=r"model/").matches(node, 0)
    True
    >>> TensorPattern(node_name_regex_allowlist=r"fc").matches(node, 0)
    False
    """

    node_name_regex_allowlist: str | None = None
    op_type_regex_allowlist: str | None = None
    tensor_dtype_regex_allowlist: str | None = None
    node_name_regex_denylist: str | None = None
    op_type_regex_denylist: str | None = None
    tensor_dtype_regex_denylist: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            check_regex(field.name, getattr(self, field.name))

    @property
    def is_empty(self) -> bool:
        """Whether everything matches, because no expression is given."""
        return all(getattr(self, field.name) is None for field in fields(self))

    @property
    def looks_at_more_than_names(self) -> bool:
        """Whether two tensors of the same name can differ in matching."""
        return any(
            text is not None
            for text in (
                self.op_type_regex_allowlist,
                self.op_type_regex_denylist,
                self.tensor_dtype_regex_allowlist,
                self.tensor_dtype_regex_denylist,
            )
        )

    def matches_node(self, node: Node) -> bool:
        """Whether name and op type pass; the outputs are then decided by dtype."""
        asked_for = self.node_name_regex_allowlist is not None or self.op_type_regex_allowlist is not None
        if not asked_for and not is_new_value(node):
            return False
        return (
            _allows(self.node_name_regex_allowlist, node.name)
            and _allows(self.op_type_regex_allowlist, node.op_type)
            and not _denies(self.node_name_regex_denylist, node.name)
            and not _denies(self.op_type_regex_denylist, node.op_type)
        )

    def matches(self, node: Node, slot: int) -> bool:
        """Whether output `slot` of `node` is meant. An output of unknown dtype has the dtype `unknown`."""
        if not self.matches_node(node):
            return False
        dtype = dtype_of(node, slot)
        return _allows(self.tensor_dtype_regex_allowlist, dtype) and not _denies(
            self.tensor_dtype_regex_denylist, dtype
        )


def is_new_value(node: Node) -> bool:
    """Whether the outputs of a node are values that no other node has.

    The complete gradient of a parameter is the output of its last gradient op, but the name people look for.
    """
    return not node.is_view or node.op_type == "AccumulateGrad"


def dtype_of(node: Node, slot: int) -> str:
    """The dtype of an output, or `unknown`."""
    return node.outputs[slot].dtype if slot < len(node.outputs) else "unknown"


def check_regex(argument: str, text: object) -> None:
    """Refuse, by the name of its argument, what cannot be used as a regular expression."""
    if text is None:
        return
    if not isinstance(text, str):
        raise TypeError(f"{argument} must be a regular expression as text, got {type(text).__name__}.")
    try:
        _compiled(text)
    except re.error as error:
        raise ValueError(f"{argument}={text!r} is no regular expression: {error}.") from error


@lru_cache(maxsize=256)
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _allows(regex: str | None, text: str) -> bool:
    return regex is None or _compiled(regex).match(text) is not None


def _denies(regex: str | None, text: str) -> bool:
    return regex is not None and _compiled(regex).match(text) is not None
