"""Tensors that answer a description, over one run or many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tensortap.analyze.facts import RunFacts
from tensortap.analyze.health import Health
from tensortap.records import Node

__all__ = ["Match", "find"]


class Match(NamedTuple):
    """One tensor that was found."""

    run: int
    step: int
    rank: int
    tensor: str
    node: Node | None
    health: Health


def find(
    facts: RunFacts,
    *,
    name: re.Pattern[str] | None = None,
    op_type: re.Pattern[str] | None = None,
    dtype: re.Pattern[str] | None = None,
    condition: Callable[[Health], bool] | None = None,
) -> Iterator[Match]:
    """The recorded tensors for which everything given holds, in the order of execution."""
    for tensor in facts.tensors:
        if name is not None and not name.search(tensor):
            continue
        node = facts.node_of(tensor) if op_type is not None else None
        if op_type is not None and (node is None or not op_type.search(node.op_type)):
            continue
        health = facts.health(tensor)
        if health is None or (condition is not None and not condition(health)):
            continue
        if dtype is not None and not dtype.search(_dtype(facts, tensor, health)):
            continue
        info = facts.info
        yield Match(info.index, info.global_step, info.task, tensor, node or facts.node_of(tensor), health)


def _dtype(facts: RunFacts, tensor: str, health: Health) -> str:
    spec = facts.spec(tensor)
    return health.dtype or ("" if spec is None else spec.dtype)
