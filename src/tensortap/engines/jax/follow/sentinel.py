"""Looking at what calls return, beside the program: whether it is bad is known a little later, and nobody waits.

The program executes its own compiled code. A thread looks at what a call returns (`looker.py`), or, if that is little,
whoever makes the next call. Where memory cannot be read, because results lie on several devices or are given away to
the next call, a small compiled function is queued behind the call that looks at them. Until the verdict is there, the
arguments of the call are kept, so that a bad call can be executed again, with taps. Kept arguments are memory: there is
a budget for it, and who runs so far ahead of the device that it is used up waits for the oldest verdict.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import jax

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.follow.chain import Chain
from tensortap.engines.jax.follow.functions import Function
from tensortap.engines.jax.follow.looker import Looker
from tensortap.engines.jax.follow.pending import Pending
from tensortap.engines.jax.taps import portable, primitives
from tensortap.engines.jax.taps.library import library
from tensortap.engines.jax.tensors import is_shared

__all__ = ["MEMORY_VARIABLE", "Sentinel", "jax_looks"]

MEMORY_VARIABLE = "TENSORTAP_JAX_MEMORY"
"""How many bytes of kept arguments there may be; an eighth of the memory of the machine by default."""

_FEWEST = 2
"""So many calls may be under way whatever their arguments take."""

_SHARED = 2
"""So many calls that several processes execute together may be under way."""

_MOST_SMALL = 64
"""Calls of single operations that are looked at together."""


class Sentinel:
    """Queues verdicts, and hands out those that are there."""

    def __init__(self) -> None:
        self._pending: deque[Pending] = deque()
        self._small: list[Pending] = []
        self._kept = 0
        self._budget = _memory_budget()
        self._looker: Looker | None = None
        self._chain: Chain | None = None

    def keep(self, function: Function, call: Call, can_repeat: bool) -> list[Any]:
        """What is kept of the arguments of a call that is about to be made.

        Args:
            function: that is called.
            call: before it is made.
            can_repeat: what it destroys is copied, so that it can be executed again.
        """
        kept: list[Any] | None = None
        chain = self._chain
        donated = [each for each, is_gone in zip(call.arguments, call.donated, strict=True) if is_gone]
        if chain is not None and chain.is_of_this_thread:
            if can_repeat and not chain.is_full and not jax_looks():
                gone = {id(each) for each in donated}
                held = {each for pending in self._holders(gone) for each in pending.holds & gone}
                kept = chain.kept(function, call, held)
            if kept is None and not function.is_small and not function.is_library:
                self._close_chain()
        if kept is None:
            kept = list(call.arguments)
        if donated:
            self._give_away([each for each in donated if any(each is other for other in kept)])
        return kept

    def copied(self, kept: list[Any], call: Call) -> list[Any]:
        """What is kept, with copies in the place of what the call will destroy; so for calls before it, too."""
        with_copies = _copied(kept, call.donated)
        copies = {id(old): new for old, new in zip(kept, with_copies, strict=True) if new is not old}
        for pending in self._holders(copies.keys()):
            pending.put_in_place(copies)
        return with_copies

    def _holders(self, arrays: Set[int]) -> list[Pending]:
        """Calls whose verdict is not known yet and that keep one of these arrays, given by their identities."""
        if not arrays:
            return []
        return [
            each
            for each in (*self._small, *self._pending)
            if each.found is None and not each.holds.isdisjoint(arrays)
        ]

    def failed(self) -> None:
        """The call that was about to be made has failed."""
        if self._chain is not None and self._chain.is_of_this_thread:
            self._chain.stay()

    def look(self, function: Function, call: Call, results: Sequence[Any], step: int) -> None:
        """Have the results of a call looked at."""
        if not function.floats:
            return
        looked_at = [results[place] for place in function.floats]
        pending = Pending(function, call, looked_at, step, function.family.calls, function.nbytes)
        if function.is_library:
            self._small.append(pending)
        else:
            self._pending.append(pending)
            if not self._has_looker() or not pending.can_be_read:
                pending.is_shared = is_shared(results)
                pending.verdict = _verdict_of(pending.results)
            elif not function.is_small:
                self._look_at_large(pending, results)
        self._kept += pending.nbytes

    def _look_at_large(self, pending: Pending, results: Sequence[Any]) -> None:
        """Look at a call with those before and after it, if what is bad in it stays bad in them."""
        chain = self._chain
        if chain is not None and chain.is_of_this_thread and chain.is_going_on:
            chain.append(pending, results)
        elif chain is None:
            chain = self._chain = Chain(pending, results)
        else:  # that of another thread
            assert self._looker is not None
            self._looker.look(Chain(pending, results))
            return
        if chain.is_full or self._kept > self._budget:
            self._close_chain()

    def _close_chain(self) -> None:
        """Have the calls looked at that belong together."""
        chain = self._chain
        if chain is None or chain.is_going_on:
            return
        self._chain = None
        if chain.last.function.is_given_away:
            chain.verdict = _verdict_of(chain.last.results)
        else:
            assert self._looker is not None
            self._looker.look(chain)

    def _give_away(self, arrays: Sequence[Any]) -> None:
        """These are about to be destroyed, by a call that they are donated to: have them looked at before it."""
        gone = {id(each) for each in arrays}
        for pending in self._pending:
            results = pending.results
            if pending.is_told or not any(id(each) in gone for each in results):
                continue
            chain = pending.chain
            if chain is not None:
                pending.function.is_given_away = True
                if chain is self._chain:
                    self._close_chain()
                elif chain.verdict is None:
                    chain.verdict = _verdict_of(results)
            elif pending.function.is_small and pending.is_ready():
                pending.kinds()
            else:
                pending.verdict = _verdict_of(results)

    def close(self) -> None:
        """Nothing more will be looked at."""
        if self._looker is not None:
            self._looker.close()

    def _has_looker(self) -> bool:
        if self._looker is None and library() is not None:
            self._looker = Looker()
        return self._looker is not None

    def settled(self, wait: bool = False) -> Iterator[tuple[Pending, Mapping[int, int]]]:
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
            if wait:
                self._close_chain()
            must = wait or (self._kept > self._budget and len(self._pending) > _FEWEST)
            if first.is_shared:  # after so many calls, in every process, however fast each is
                must = wait or len(self._pending) > _SHARED
                if not must:
                    break
            if not must and not first.is_ready():
                break
            if first.chain is not None and first.chain is self._chain:
                self._close_chain()
                if self._chain is not None:
                    break  # another thread is about to go on with it
            self._pending.popleft()
            self._kept -= first.nbytes
            with calls.unheard():
                yield from self._found(first)

    def _found(self, pending: Pending) -> Iterator[tuple[Pending, Mapping[int, int]]]:
        """What is bad about a call, or a chain when its first call is asked about; waits until that is known."""
        chain = pending.chain
        if chain is None:
            if pending.kinds():
                yield pending, pending.kinds()
            return
        if self._looker is not None:
            self._looker.wait_for(chain)
        if chain.bad is None:
            chain.look()  # a verdict that is queued
        if chain.bad and pending is chain.members[0]:
            yield from chain.found()


def _copied(arguments: Sequence[Any], donated: Sequence[bool]) -> list[Any]:
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


def _verdict_of(arrays: Sequence[Any]) -> Any:
    """What will be known of these, behind what makes them."""
    # Over several devices XLA knows how to take its own operations apart, and not ours.
    is_one_device = all(len(each.sharding.device_set) == 1 for each in arrays)
    verdict_of = _native_verdict if is_one_device and library() is not None else _portable_verdict
    with calls.unheard(), jax.debug_nans(False), jax.debug_infs(False):
        return verdict_of(*arrays)


def jax_looks() -> bool:
    """Whether JAX looks at results itself, and raises if something is bad."""
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)


@functools.cache
def _memory_budget() -> int:
    text = os.environ.get(MEMORY_VARIABLE, "")
    if text.isdecimal():
        return int(text)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (ValueError, OSError):
        return 1 << 30
