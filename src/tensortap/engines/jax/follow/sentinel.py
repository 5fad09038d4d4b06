"""Looking at what calls return, beside the program: whether it is bad is known a little later, and nobody waits.

The program executes its own compiled code. Behind each call a small compiled function is queued that looks at the
results. Until its verdict is there, the arguments of the call are kept, so that a bad call can be executed again, with
taps. Kept arguments are memory: there is a budget for it, and who runs so far ahead of the device that it is used up
waits for the oldest verdict.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.follow.functions import Function
from tensortap.engines.jax.taps import portable, primitives
from tensortap.engines.jax.taps.library import library
from tensortap.engines.jax.tensors import host_array, is_shared
from tensortap.pill import kinds_of_elements

__all__ = ["MEMORY_VARIABLE", "Pending", "Sentinel", "copied"]

MEMORY_VARIABLE = "TENSORTAP_JAX_MEMORY"
"""How many bytes of kept arguments there may be; an eighth of the memory of the machine by default."""

_FEWEST = 2
"""So many calls may be under way whatever their arguments take."""

_SHARED = 2
"""So many calls that several processes execute together may be under way."""

_MOST_SMALL = 64
"""Calls of single operations that are looked at together."""


@dataclass(slots=True)
class Pending:
    """A call whose verdict is not known yet.

    Attributes:
        call: with the arguments that were kept.
        verdict: kinds of bad values of each result that can be bad; an array that may not be there yet.
        results: instead, the results themselves, for small ones.
        step: of the program, when it was called.
        number: of the call among those of its function.
        nbytes: of its arguments.
        is_shared: several processes execute it together. What one of them executes besides, all of them must, in the
            same order, or they wait for each other for ever.
    """

    function: Function
    call: Call
    verdict: Any
    results: Sequence[Any]
    step: int
    number: int
    nbytes: int
    is_shared: bool = False

    def is_ready(self) -> bool:
        """Whether the verdict can be read without waiting."""
        if self.verdict is not None:
            return bool(self.verdict.is_ready())
        return all(each.is_deleted() or each.is_ready() for each in self.results)

    def kinds(self) -> dict[int, int]:
        """Kinds of bad values by place of the result; waits until they are known."""
        if self.verdict is not None:
            return {
                place: kinds
                for place, kinds in zip(self.function.floats, np.asarray(self.verdict).tolist(), strict=True)
                if kinds
            }
        found = {}
        for place in self.function.floats:
            result = self.results[place]
            array = None if result.is_deleted() else host_array(result)
            kinds = 0 if array is None else kinds_of_elements(array)
            if kinds:
                found[place] = kinds
        return found


class Sentinel:
    """Queues verdicts, and hands out those that are there."""

    def __init__(self) -> None:
        self._pending: deque[Pending] = deque()
        self._small: list[Pending] = []
        self._kept = 0
        self._budget = _memory_budget()
        self.waited = 0

    def look(self, function: Function, call: Call, results: Sequence[Any], step: int) -> None:
        """Have the results of a call looked at."""
        if not function.floats:
            return
        nbytes = sum(int(getattr(each, "nbytes", 0)) for each in call.arguments)
        if function.is_library:
            self._small.append(Pending(function, call, None, results, step, function.family.calls, nbytes))
        else:
            with calls.unheard(), jax.debug_nans(False), jax.debug_infs(False):
                verdict = _verdict(*(results[place] for place in function.floats))
            self._pending.append(
                Pending(function, call, verdict, (), step, function.family.calls, nbytes, is_shared(results))
            )
        self._kept += nbytes

    def settled(self, wait: bool = False) -> Iterator[tuple[Pending, dict[int, int]]]:
        """The bad calls among those whose verdict is known; waits for all of them, or for those over the budget."""
        small, self._small = self._small, []
        if small and (wait or len(small) >= _MOST_SMALL or self._kept > self._budget):
            for place, each in enumerate(small):
                if not wait and len(small) < 2 * _MOST_SMALL and not each.is_ready():
                    self._small = small[place:] + self._small
                    break
                self._kept -= each.nbytes
                kinds = each.kinds()
                if kinds:
                    yield each, kinds
        else:
            self._small = small + self._small
        while self._pending:
            first = self._pending[0]
            must = wait or (self._kept > self._budget and len(self._pending) > _FEWEST)
            if first.is_shared:  # after so many calls, in every process, however fast each is
                must = wait or len(self._pending) > _SHARED
                if not must:
                    break
            if not must and not first.is_ready():
                break
            self.waited += not first.is_ready()
            self._pending.popleft()
            self._kept -= first.nbytes
            with calls.unheard():
                kinds = first.kinds()
            if kinds:
                yield first, kinds


def copied(arguments: Sequence[Any], donated: Sequence[bool]) -> list[Any]:
    """The arguments, copies in the place of those that the call may destroy."""
    places = [
        place
        for place, (each, gone) in enumerate(zip(arguments, donated, strict=True))
        if gone and isinstance(each, jax.Array) and not each.is_deleted()
    ]
    kept = list(arguments)
    if places:
        with calls.unheard():
            copies = _copies(*(arguments[place] for place in places))
        for place, copy in zip(places, copies, strict=True):
            kept[place] = copy
    return kept


_copies = jax.jit(lambda *arrays: tuple(map(jax.numpy.copy, arrays)))
_portable_verdict = jax.jit(portable.bad_kinds)
_native_verdict = jax.jit(primitives.bad_kinds)


def _verdict(*arrays: Any) -> Any:
    # Over several devices XLA knows how to take its own operations apart, and not ours.
    is_one_device = all(len(each.sharding.device_set) == 1 for each in arrays)
    return (_native_verdict if is_one_device and library() is not None else _portable_verdict)(*arrays)


@functools.cache
def _memory_budget() -> int:
    text = os.environ.get(MEMORY_VARIABLE, "")
    if text.isdecimal():
        return int(text)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (ValueError, OSError):
        return 1 << 30
