"""The parts of a traced program: operations and their outputs, loops, and blocks of equations.

A **site** is one output of one equation (or one variable that a loop hands to its body), with a number of its own: what
can be tapped or fed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn

from tensortap.records import Frame, TensorSpec

__all__ = ["Argument", "Block", "Loop", "Op", "Site", "Step", "Value", "is_float", "spec_of_aval"]


@dataclass(frozen=True, slots=True)
class Site:
    """One output of an operation."""

    number: int
    op: int
    slot: int
    spec: TensorSpec
    is_float: bool


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the program, or a constant that it closes over."""

    place: int
    is_constant: bool = False


Value = Site | Argument | Any
"""What a variable stands for; anything else is the value of a literal."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop or a branch that operations are executed in.

    Attributes:
        kind: `scan`, `while` or `cond`.
        line: of the user's program.
        length: how many iterations a scan has; -1 if it is not known.
        reverse: the scan begins with the last element.
    """

    kind: str
    line: Frame | None
    length: int = -1
    reverse: bool = False


@dataclass(slots=True)
class Op:
    """One operation.

    Attributes:
        primitive: its name.
        inputs: what it is given.
        outs: its sites.
        scope: names of scopes, functions and modules around it, empty or ending in a slash.
        traceback: by which a gradient finds the operation it belongs to.
        loops: what it is executed in, outermost first.
        is_differentiated: it was traced by automatic differentiation.
        forward: of a gradient, the place of the operation it belongs to.
        is_early: part of a derivative that is worked out on the way forward.
    """

    primitive: str
    inputs: tuple[Value, ...]
    outs: tuple[Site, ...]
    scope: str
    stack: tuple[Frame, ...]
    traceback: Any
    is_backward: bool
    is_optimizer: bool
    attributes: dict[str, Any]
    loops: tuple[Loop, ...]
    is_differentiated: bool = False
    forward: int | None = None
    is_early: bool = False


@dataclass(slots=True)
class Step:
    """One equation, with what is inside it.

    Attributes:
        outs: a site for each output; None where there is nothing to tap.
        inner: blocks by parameter; several for the branches of a `cond`.
        control: the site that says which branch is executed.
        marks: of a `while`, a site in its body and one behind it. How often it ran is counted by them: its condition
            may never be executed, if XLA knows the answer.
        leaving: sites of what an iteration of a loop hands on.
        copies: on how many devices it is executed.
    """

    eqn: JaxprEqn
    outs: tuple[Site | None, ...]
    inner: dict[str, list[Block]] = field(default_factory=dict)
    control: Site | None = None
    loop: Loop | None = None
    leaving: frozenset[int] = frozenset()
    copies: int = 1
    marks: tuple[Site, Site] | None = None


@dataclass(slots=True)
class Block:
    """The equations of one jaxpr; `entry` has sites of variables that a loop hands in, `copies` on how many devices."""

    jaxpr: Jaxpr
    entry: tuple[Site | None, ...] = ()
    copies: int = 1
    steps: list[Step] = field(default_factory=list)

    def sites(self) -> Iterator[Site]:
        """All sites in it, those of inner blocks included."""
        yield from (site for site in self.entry if site is not None)
        for step in self.steps:
            yield from (site for site in step.outs if site is not None)
            for blocks in step.inner.values():
                for block in blocks:
                    yield from block.sites()


def spec_of_aval(aval: Any) -> TensorSpec:
    """Dtype and shape of a value, in the names that records use."""
    shape = tuple(d if isinstance(d, int) else None for d in getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", None)
    return TensorSpec(str(getattr(dtype, "name", dtype)), shape)


def is_float(aval: Any) -> bool:
    """Whether a value can hold NaN or infinities."""
    dtype = getattr(aval, "dtype", None)
    try:
        return dtype is not None and bool(
            np.issubdtype(dtype, np.inexact)
            or (np.dtype(dtype).kind in "V" and "float" in np.dtype(dtype).name)
        )
    except TypeError:  # a key of a random generator
        return False
