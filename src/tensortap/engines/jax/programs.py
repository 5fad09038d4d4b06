"""Programs that were looked through and rewritten, kept while they are called."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from tensortap.engines.jax import calls
from tensortap.engines.jax.known_good import KnownGood
from tensortap.engines.jax.program import Program, Site
from tensortap.engines.jax.taps import portable
from tensortap.engines.jax.taps.kinds import CHECK, PILL
from tensortap.engines.jax.taps.lean import enough
from tensortap.engines.jax.taps.library import Library, Taken, library
from tensortap.engines.jax.taps.op_by_op import OpByOp
from tensortap.engines.jax.taps.replay import Execution, Spread, executions
from tensortap.engines.jax.taps.rewrite import Wishes, tapped
from tensortap.pill import kinds_of

__all__ = ["Programs"]

log = logging.getLogger("tensortap.engine")

_KEPT = 512
_LOCK_SECS = 60.0
_MOST_BEYOND = 3
_one_at_a_time = threading.Lock()
"""Records of all programs go to one place: who executes one with taps takes what is there."""


class Programs:
    """Looks programs through once, and executes them with taps."""

    def __init__(self) -> None:
        self._programs: OrderedDict[int, tuple[Any, Program]] = OrderedDict()
        self._tapped: OrderedDict[tuple[int, Wishes], Any] = OrderedDict()
        self._enough: dict[tuple[int, Wishes], Wishes] = {}
        self._beyond: dict[int, int] = {}
        self._known_good = KnownGood()
        self._feeds: dict[tuple[int, int], int] = {}
        self._labels: dict[int, int] = {}
        self._refused: dict[int, tuple[Program, str]] = {}
        self.dropped = 0

    def of(self, jaxpr: Any) -> Program:
        """The program of a jaxpr."""
        found = self._programs.get(id(jaxpr))
        if found is None:
            found = self._programs[id(jaxpr)] = (jaxpr, Program(jaxpr))  # with what keeps its identity
            while len(self._programs) > _KEPT:
                self._programs.popitem(last=False)
        return found[1]

    def feed_number(self, program: Program, site: int) -> int:
        """Under which number the value of a fed site is stored."""
        return self._feeds.setdefault((id(program), site), len(self._feeds))

    def label_of(self, program: Program) -> int:
        """The number by which the operations of a program are found in what is measured."""
        return self._labels.setdefault(id(program), len(self._labels))

    def store(self, number: int, value: Any) -> None:
        """Store a fed value."""
        native = library()
        portable.store(number, value)
        if native is not None:
            native.store(number, value)

    def execute(
        self, program: Program, call: calls.Call, wishes: Wishes, arguments: Sequence[Any]
    ) -> tuple[Sequence[Any], list[Execution]]:
        """Execute a call with taps: its results, which are complete, and what the taps have seen."""
        results, taken = self._run(program, call, wishes, arguments)
        return results, executions(program, taken, dict(wishes.taps), _spread([*arguments, *results]))

    def refuse(self, program: Program, reason: str) -> None:
        """Remember that JAX takes no taps in a program; said once."""
        if id(program) not in self._refused:
            self._refused[id(program)] = (program, reason)
            told = reason.partition(". ")[0].splitlines()[0]
            log.warning(
                "%s takes no taps, so it is not known what happens inside of it. JAX says: %s.",
                program.name,
                told,
            )

    def _run(
        self,
        program: Program,
        call: calls.Call,
        wishes: Wishes,
        arguments: Sequence[Any],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[Sequence[Any], Taken]:
        native = library()
        rewritten = self._rewritten(program, wishes, native)
        parameters = dict(
            call.parameters,
            jaxpr=rewritten,
        )
        if wishes.taps or wishes.feeds:
            parameters.update(donated_invars=(False,) * len(call.donated), keep_unused=True)
        if not _one_at_a_time.acquire(timeout=_LOCK_SECS):
            raise RuntimeError("Another thread executes a program with taps, and does not come to its end.")
        try:
            _take(native)  # what a call that failed has left
            with _without_checks():
                results = calls.execute(arguments, parameters)
            with calls.unheard():
                meanwhile()
                jax.block_until_ready(results)
                if not results:
                    jax.effects_barrier()
            taken = _take(native)
        finally:
            _one_at_a_time.release()
        self.dropped += taken.dropped
        return results, taken

    def execute_op_by_op(self, program: Program, wishes: Wishes, arguments: Sequence[Any]) -> list[Execution]:
        """Execute a call operation by operation, beside what the program does; what was seen."""
        one_by_one = OpByOp(program, dict(wishes.taps))
        with calls.unheard(), _without_checks():
            one_by_one.run(arguments)
        if not one_by_one.is_whole:
            log.warning("Executing %s operation by operation takes too long; it was cut off.", program.name)
        return one_by_one.records

    def is_good(
        self,
        program: Program,
        call: calls.Call,
        wishes: Wishes,
        arguments: Sequence[Any],
        meanwhile: Callable[[], None],
    ) -> tuple[Sequence[Any], bool]:
        """Execute a call with the fewest taps by which it is known whether anything that is wished for is bad."""
        few = self._fewest(program, wishes)
        results, taken = self._run(program, call, few, arguments, meanwhile)
        if any(map(kinds_of, taken.rows)):
            return results, False
        bounded = {number for number, _ in few.bounds}
        if bounded.intersection(taken.numbers.tolist()):
            self._beyond_bounds(program, wishes)
            return results, False
        self._known_good.add(
            result
            for result, value in zip(results, program.outputs, strict=True)
            if isinstance(value, Site) and (value.number, PILL) in wishes.taps
        )
        return results, True

    def is_known_good(self, array: Any) -> bool:
        """Whether an array was made by a call that was looked at, and is good."""
        return array in self._known_good

    def _fewest(self, program: Program, wishes: Wishes) -> Wishes:
        key = (id(program), wishes)
        found = self._enough.get(key)
        if found is None:
            numbers = [number for number, _ in wishes.taps]
            has_bounds = library() is not None and self._beyond.get(id(program), 0) < _MOST_BEYOND
            looked_at = enough(program, numbers, has_bounds)
            found = self._enough[key] = Wishes(
                frozenset((number, CHECK) for number in looked_at),
                bounds=frozenset((number, each) for number, each in looked_at.items() if each is not None),
            )
        return found

    def _beyond_bounds(self, program: Program, wishes: Wishes) -> None:
        """A call has to be executed once more, and may be good: if that is so time and again, without bounds."""
        self._beyond[id(program)] = times = self._beyond.get(id(program), 0) + 1
        if times >= _MOST_BEYOND:
            self._enough.pop((id(program), wishes), None)

    def _rewritten(self, program: Program, wishes: Wishes, native: Library | None) -> Any:
        key = (id(program), wishes)
        found = self._tapped.get(key)
        if found is None:
            found = self._tapped[key] = (program, tapped(program, wishes, native is not None))
            while len(self._tapped) > _KEPT:
                self._tapped.popitem(last=False)
        return found[1]


def _spread(arrays: Sequence[Any]) -> Spread:
    """Over how many devices a program was executed whose arguments and results these are."""
    placed = [each.sharding for each in arrays if isinstance(each, jax.Array)]
    if library() is None:
        return Spread()
    return Spread(
        max((len(each.device_set) for each in placed), default=1),
        max((len(each.addressable_devices) for each in placed), default=1),
    )


@contextmanager
def _without_checks() -> Iterator[None]:
    """What we execute may be bad: JAX's own checks are for what the program executes."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def _take(native: Library | None) -> Taken:
    """All records; those of programs on several devices are always made by portable taps."""
    others = portable.take()
    return others if native is None else Taken.joined(native.take(), others)
