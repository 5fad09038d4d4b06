"""Graphs of earlier updates that something holds on to, and what it is."""

from __future__ import annotations

import gc
import inspect
import re
import weakref
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from tensortap.engines.torch import lines
from tensortap.engines.torch.variables import variables_of
from tensortap.records import Frame, KeptGraphs

__all__ = ["LivingGraphs"]

_MANY = 6
"""Graphs that have to be alive before anybody asks who holds them."""

_MOST = 64
_FARTHEST = 256


class _Sign:
    """Put into a node of autograd, it lives as long as the node does."""

    __slots__ = ("__weakref__",)


class LivingGraphs:
    """Marks the graph of each backward pass, and counts those that have outlived their update.

    They are counted for each line that begins backward passes: a GAN may hold on to the losses of its generator only.
    """

    def __init__(self) -> None:
        self._signs: list[tuple[Any, Any, Frame | None]] = []
        self._marked: Counter[Frame | None] = Counter()
        self._holder: tuple[str, Frame | None] | None = None

    def mark(self, outputs: Any, source: Frame | None = None) -> None:
        """A backward pass begins at these, in this line."""
        output = outputs[0] if isinstance(outputs, list | tuple) and outputs else outputs
        node = getattr(output, "grad_fn", None)
        notes = getattr(node, "metadata", None)
        if not isinstance(output, torch.Tensor) or notes is None or len(self._signs) >= _MOST:
            return
        if source not in self._marked and len(self._marked) >= _MOST:
            return
        sign = _Sign()
        if notes.setdefault("tensortap", sign) is sign:
            self._signs.append((weakref.ref(sign), weakref.ref(output), source))
            self._marked[source] += 1

    def told(self, frame: FrameType | None) -> KeptGraphs:
        """How many of them are alive but the last, of the line with most of them, and who holds them."""
        self._signs = [each for each in self._signs if each[0]() is not None]
        alive = Counter(source for _, _, source in self._signs)
        line, number = max(alive.items(), key=lambda each: each[1], default=(None, 0))
        if not number and self._marked:
            line = self._marked.most_common(1)[0][0]
        number = max(0, number - 1)
        if number >= _MANY and self._holder is None:
            self._holder = self._find_holder(frame, line)
        name, source = self._holder or ("", None)
        held_at = None if source is None else str(source)
        return KeptGraphs(max(0, self._marked[line] - 1), number, name, held_at)

    def _find_holder(self, frame: FrameType | None, line: Frame | None) -> tuple[str, Frame | None]:
        sign, output = next((sign, output) for sign, output, source in self._signs if source == line)
        held, wanted = output(), sign()
        spaces = list(_spaces(frame))
        containers = [] if held is None else [each for each in gc.get_referrers(held) if _is_container(each)]
        for each, space in spaces:
            for name, value in list(space.items()):
                if any(value is container for container in containers):
                    return name, _line_that_holds(each, name)
                if isinstance(value, torch.Tensor) and value is not held and _leads_to(value, wanted):
                    return name, _line_that_holds(each, name)
        return "", None


def _is_container(thing: Any) -> bool:
    return (
        hasattr(thing, "append")
        or hasattr(thing, "add")
        or (isinstance(thing, dict) and "__name__" not in thing)
    )


def _spaces(frame: FrameType | None) -> Iterator[tuple[FrameType, dict[str, Any]]]:
    """What the program's functions that are being executed have in variables, and their objects in attributes."""
    frame = lines.first_user_frame(frame)
    while frame is not None:
        variables = variables_of(frame)
        yield frame, variables
        owner = getattr(variables.get("self"), "__dict__", None)
        if owner is not None:
            yield frame, owner
        if frame.f_globals is not variables:
            yield frame, frame.f_globals
        frame = lines.first_user_frame(frame.f_back)


def _leads_to(tensor: torch.Tensor, sign: Any) -> bool:
    node = tensor.grad_fn
    pending, seen = [node] if node is not None else [], 0
    while pending and seen < _FARTHEST:
        seen += 1
        node = pending.pop()
        if (getattr(node, "metadata", None) or {}).get("tensortap") is sign:
            return True
        pending += [each for each, _ in node.next_functions if each is not None]
    return False


def _line_that_holds(frame: FrameType, name: str) -> Frame | None:
    """The line of a function, or else of its file, that adds to what is called so."""
    adds = re.compile(
        rf"\b{re.escape(name)}\b(\.(append|add|extend|appendleft|update|setdefault)\(|\[.*\]\s*(\+)?=[^=]"
        rf"|\s*\+=|\s*=.*\b{re.escape(name)}\b\s*\+)"
    )
    code = frame.f_code
    for thing in (code, inspect.getmodule(frame)):
        try:
            text, first = inspect.getsourcelines(thing) if thing is not None else ([], 0)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(text, max(first, 1)):
            if adds.search(line):
                return Frame(code.co_filename, number, code.co_qualname)
    return None
