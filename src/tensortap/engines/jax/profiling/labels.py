"""Labels: which operation of which program an instruction of XLA was made of."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Label", "label_text", "labels_in"]

_LABEL = re.compile(r"\btensortap(\d+)_(\d+)\b")


class Label(NamedTuple):
    """The place of an operation in a numbered program."""

    program: int
    op: int


def label_text(program: int, op: int) -> str:
    """The scope that says it."""
    return f"tensortap{program}_{op}"


def labels_in(name: str) -> list[Label]:
    """The labels in the name that XLA gives an instruction; several, if it was made of several.

    >>> labels_in("jit(step)/tensortap0_7/while/body/tensortap0_8/mul;jit(step)/tensortap0_9/neg")
    [Label(program=0, op=8), Label(program=0, op=9)]
    """
    found = (_LABEL.findall(part) for part in name.split(";"))
    return [Label(int(labels[-1][0]), int(labels[-1][1])) for labels in found if labels]
