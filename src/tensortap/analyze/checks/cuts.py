"""Where the way from a parameter to the loss is cut, as the graph of a run shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tensortap.analyze.checks.lines import lines_between
from tensortap.analyze.facts import RunFacts
from tensortap.records import Frame, Node

__all__ = ["Cut", "cut_of", "rounding_of"]

_CHOICES = re.compile(
    r"(argmax|argmin|argsort|multinomial|topk|nonzero|searchsorted|bucketize|one_hot|(^|:)(eq|ne|lt|le|gt|ge)\b)"
)
_ROUNDINGS = re.compile(r"(^|:)(round|floor|ceil|trunc|sign|heaviside)_?$")
_VALUES = re.compile(
    r"\.tolist\(|\.item\(|\.numpy\(|\btorch\.(tensor|as_tensor|from_numpy|Tensor|FloatTensor)\(|\bfloat\(|\bnp\."
)
_MEANT = (
    (re.compile(r"\.detach(_)?\("), "by detach"),
    (re.compile(r"\.data\b"), "by .data"),
    (re.compile(r"no_grad|inference_mode|set_grad_enabled"), "by no_grad"),
)
_LINES_AROUND, _LINES_ABOVE = 3, 20
_MOST_NODES = 20_000


class Cut(NamedTuple):
    """What cuts the way.

    Attributes:
        node: the last operation that depends on the parameter.
        how: in words.
        source: the line.
        may_be_meant: whether a program does it to stop gradients.
    """

    node: str
    how: str
    source: Frame | None
    may_be_meant: bool


def cut_of(run: RunFacts, parameters: Iterable[str]) -> Cut | None:
    """Where the way from these parameters to what has gradients is cut; None if the run does not show it."""
    differentiated = _differentiated(run)
    ends: list[tuple[Node, Node | None]] = []
    pending = [f"{name}:0" for name in parameters]
    seen: set[str] = set()
    while pending and len(seen) < _MOST_NODES:
        tensor = pending.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        maker = run.node_of(tensor)
        takers = [node for node, _ in run.consumers(tensor) if run.phase(node.name) == "forward"]
        if maker is not None and not takers and run.phase(maker.name) == "forward":
            ends.append((maker, None))
        for taker in takers:
            if taker.name in differentiated:
                if maker is not None:
                    ends.append((maker, taker))
            else:
                pending += [taker.tensor(slot) for slot in range(max(len(taker.outputs), 1))]
    joined = [end for end in ends if end[1] is not None] or ends
    for last, following in joined:
        cut = _explained(run, last, following)
        if cut is not None:
            return cut
    return None


def rounding_of(run: RunFacts, parameters: Iterable[str]) -> Cut | None:
    """An operation behind these parameters whose gradient is zero everywhere."""
    pending = [f"{name}:0" for name in parameters]
    seen: set[str] = set()
    while pending and len(seen) < _MOST_NODES:
        tensor = pending.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        for taker, _ in run.consumers(tensor):
            if run.phase(taker.name) != "forward":
                continue
            if _ROUNDINGS.search(taker.op_type):
                return Cut(taker.name, f"by {_word(taker)}, whose gradient is zero", taker.own_source, False)
            pending += [taker.tensor(slot) for slot in range(max(len(taker.outputs), 1))]
    return None


def _differentiated(run: RunFacts) -> set[str]:
    """Forward nodes that have gradients."""
    found = set()
    for name in run.nodes:
        if run.phase(name) == "backward":
            forward = run.forward_of(run.nodes[name])
            if forward is not None:
                found.add(forward.name)
    return found


def _explained(run: RunFacts, maker: Node, taker: Node | None) -> Cut | None:
    if _CHOICES.search(maker.op_type):
        return Cut(maker.name, f"by {_word(maker)}, which has no gradient", maker.own_source, False)
    source = maker.own_source
    if source is None:
        return None
    until = None if taker is None else taker.own_source
    last = (
        until.line
        if until is not None and until.file == source.file and until.line >= source.line
        else source.line
    )
    around = list(
        lines_between(
            run, source.file, source.line, max(last, source.line + (_LINES_AROUND if taker is None else 0))
        )
    )
    for number, text in around:
        if _VALUES.search(text):
            return Cut(maker.name, "by a new tensor made of its values", replace(source, line=number), False)
        for pattern, how in _MEANT:
            if pattern.search(text):
                return Cut(maker.name, how, replace(source, line=number), True)
    for number, text in reversed(
        list(lines_between(run, source.file, source.line - _LINES_ABOVE, source.line - 1))
    ):
        if _MEANT[2][0].search(text):
            return Cut(maker.name, "by no_grad", replace(source, line=number), True)
        if text.startswith(("def ", "class ")):
            break
    return Cut(maker.name, "there", source, True) if taker is not None else None


def _word(node: Node) -> str:
    return node.op_type.rpartition(":")[2]
