"""Calls of one function, each given what the one before returned, that are kept and looked at together.

State that stays bad once it is bad need not be read after every call: what the last call of a chain returned tells of
all. Nor need the state before each call be kept. Of the first call all arguments are, of the others what they were
given besides: if something is bad, the chain is executed once more, call by call, and the first bad one has its
arguments again. What calls destroy, because it is donated to them, has to be copied before the first one only.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.follow.functions import Function
from tensortap.engines.jax.follow.pending import Pending, kinds_in
from tensortap.engines.jax.taps.library import Memory

__all__ = ["Chain", "Made"]

log = logging.getLogger("tensortap.hooks")

_LONGEST = 64
_SECONDS = 1.0
_TIMES = 4
"""A chain of so many calls, so old, or that keeps so many times what its first call was given, is looked at: nobody
waits long for an answer, and memory is not used up for batches."""


@dataclass(frozen=True, slots=True)
class Made:
    """An argument that the call before returned, at a place of its results."""

    place: int


class Chain:
    """Calls that are looked at together, at least one.

    Args:
        first: of them, with all its arguments.
        results: all that it returned.

    Attributes:
        members: the calls.
        is_going_on: a call that belongs to it is being made: nobody may close it.
        bad: whether anything was bad, once that is known.
        verdict: kinds of bad values of what the last call returned; an array that may not be there yet. None if that is
            looked at in memory.
    """

    def __init__(self, first: Pending, results: Sequence[Any]) -> None:
        self.members = [first]
        self.is_going_on = False
        self.bad: bool | None = None
        self.verdict: Any = None
        self._held: Sequence[Any] = ()
        self._kinds: Sequence[int] = ()
        self._made = _references(results)
        self._rest: list[Any] = []
        self._thread = threading.get_ident()
        self._began = time.monotonic()
        self._nbytes = first.nbytes
        first.chain = self

    @property
    def last(self) -> Pending:
        """The call whose results tell of all."""
        return self.members[-1]

    @property
    def is_full(self) -> bool:
        """Whether it is time to look at it."""
        return (
            self.last.function.telling is None
            or len(self.members) >= _LONGEST
            or self._nbytes >= _TIMES * self.members[0].nbytes
            or time.monotonic() - self._began > _SECONDS
        )

    @property
    def is_of_this_thread(self) -> bool:
        """Whether its calls are made by the thread that asks."""
        return self._thread == threading.get_ident()

    # --- how it grows --------------------------------------------------------------------------------

    def kept(self, function: Function, call: Call, copied: Collection[int]) -> list[Any] | None:
        """What has to be kept of the arguments of a call that goes on with it; None if it does not.

        It does if whatever is bad in large results of the last one is bad in those of the call, too.

        Args:
            function: that is called.
            call: before it is made.
            copied: identities of arguments of which there will be copies anyway.
        """
        if function is not self.last.function or function.telling is None or not function.repeats:
            return None
        places = {id(each): place for place, reference in self._made if (each := reference()) is not None}
        shows = {id(call.arguments[place]) for place in function.telling.arguments}
        for place, each in enumerate(self.last.results):
            if id(each) not in shows and place not in function.little:
                return None
        for each in copied:
            places.pop(each, None)
        kept = [Made(places[id(each)]) if id(each) in places else each for each in call.arguments]
        gone = {id(each) for each, is_gone in zip(call.arguments, call.donated, strict=True) if is_gone}
        if any(id(each) in gone and id(each) not in shows for each in self.last.results):
            return None
        self._held, self.last.results = self.last.results, ()
        self._rest.extend(each for each in self._held if id(each) not in shows)
        self.is_going_on = True
        return kept

    def stay(self) -> None:
        """The call that it would have gone on with has failed."""
        if self.is_going_on:
            self.last.results, self._held = self._held, ()
            self.is_going_on = False

    def append(self, pending: Pending, results: Sequence[Any]) -> None:
        """The call that it goes on with has been made."""
        call = pending.call
        pending.call = replace(call, go_on=tuple)  # which keeps what it was given
        pending.nbytes = sum(
            nbytes
            for each, nbytes in zip(call.arguments, pending.function.nbytes_of, strict=True)
            if not isinstance(each, Made)
        )
        self._nbytes += pending.nbytes
        pending.chain = self
        self.members.append(pending)
        self._made = _references(results)
        self._held = ()
        self.is_going_on = False

    # --- how it is looked at -----------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether it can be said without waiting whether anything is bad."""
        return self.bad is not None or (self.verdict is not None and bool(self.verdict.is_ready()))

    def look(self) -> None:
        """Look at what must be looked at; waits until it is there."""
        bad = False
        if self._rest:
            memory = Memory([each.dtype.name for each in self._rest], [each.size for each in self._rest])
            bad = any(kinds_in(memory, self._rest))
        if self.verdict is not None:
            kinds: Sequence[int] = np.asarray(self.verdict).tolist()
        else:
            assert self.last.function.memory is not None
            kinds = kinds_in(self.last.function.memory, self.last.results)
        self.tell(kinds, bad)

    def is_gone(self) -> bool:
        """Whether what must be looked at was given away, or never made."""
        arrays = [*self._rest, *self.last.results]
        try:
            return any(each.is_deleted() or each.block_until_ready() is not each for each in arrays)
        except Exception:  # the computation has failed
            return True

    def tell(self, kinds: Sequence[int], is_bad_before: bool) -> None:
        """Say what is bad: kinds of bad values in what the last call returned, and whether any before it did.

        If nothing is, what was kept is let go.
        """
        self._kinds = kinds
        self._rest = []
        bad = is_bad_before or any(kinds)
        if not bad:
            for each in self.members:
                each.tell({})
        self.bad = bad

    def give_up(self) -> None:
        """It cannot be looked at."""
        self.tell((), False)

    def found(self) -> Iterator[tuple[Pending, Mapping[int, int]]]:
        """The bad calls, each with its arguments while it is asked about; waits for nobody."""
        kinds = dict(zip(self.last.function.floats, self._kinds, strict=False))
        if len(self.members) == 1:
            self.last.tell(kinds)
            yield self.last, self.last.kinds()
            return
        try:
            yield from self._found_again(kinds)
        except Exception:
            first, last = self.members[0].step, self.last.step
            log.warning(
                "%s returned NaN or infinities in one of the steps %d to %d, which could not be executed again to find "
                "out why.",
                *(self.last.function.name, first, last),
                exc_info=True,
            )

    def _found_again(self, kinds: Mapping[int, int]) -> Iterator[tuple[Pending, Mapping[int, int]]]:
        any_found = False
        for pending in self._again():
            if pending is self.last and not any_found and not pending.kinds():
                pending.found = {
                    place: each for place, each in kinds.items() if each
                }  # not so the second time
            if pending.kinds():
                any_found = True
                yield pending, pending.kinds()
            pending.call = replace(pending.call, arguments=(), go_on=tuple)

    def _again(self) -> Iterator[Pending]:
        """The calls, each executed once more, with its arguments in place and what is bad in its results."""
        results: Sequence[Any] = ()
        for pending in self.members:
            given = [
                results[each.place] if isinstance(each, Made) else each for each in pending.call.arguments
            ]
            parameters = dict(pending.call.parameters, donated_invars=(False,) * len(given))
            execute = functools.partial(calls.execute, given, parameters)
            with calls.unheard(), jax.debug_nans(False), jax.debug_infs(False):
                results = execute()
            memory, floats = pending.function.memory, pending.function.floats
            assert memory is not None
            kinds = kinds_in(memory, [results[place] for place in floats])
            pending.results = ()
            pending.call = replace(pending.call, arguments=given, go_on=execute)
            pending.found = {place: each for place, each in zip(floats, kinds, strict=True) if each}
            yield pending


def _references(results: Sequence[Any]) -> list[tuple[int, weakref.ref[Any]]]:
    return [(place, weakref.ref(each)) for place, each in enumerate(results) if isinstance(each, jax.Array)]
