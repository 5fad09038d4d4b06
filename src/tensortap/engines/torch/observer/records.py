"""Which outputs the observer records, and where the records go that it has made."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.observer.lanes import Lanes
from tensortap.engines.torch.observer.library import NativeObserver
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.engines.torch.observer.numbers import Numbers
from tensortap.engines.torch.tensors import TENSORS
from tensortap.sink.queue import shared_queue

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching

__all__ = ["Records"]

MAX_AGE_SECS = 0.05
_PLANS_KEPT = 16  # as many as watch plans


class _Run(NamedTuple):
    plan: RunPlan
    observation: Observation
    lanes: Lanes


class Records:
    """The records of one observer.

    Args:
        observer: makes them.
        numbers: what its numbers mean.
        nodes: that it knows.
    """

    def __init__(self, observer: NativeObserver, numbers: Numbers, nodes: Nodes) -> None:
        self._library = observer.library
        self._observer = observer
        self._numbers = numbers
        self._nodes = nodes
        self._run: _Run | None = None
        self._known_lanes: OrderedDict[Any, Lanes] = OrderedDict()
        self._flush_is_due = False

    # --- one run -----------------------------------------------------------------------------------

    def lanes_for(self, plan: RunPlan) -> Lanes:
        """What the observer knows already of runs that are watched like this one."""
        keys = None if plan.watching is None else plan.watching.publisher.keys
        known = (id(keys), plan.captures, bool(plan.taps))
        found = self._known_lanes.pop(known, None) or Lanes(self._library, keys)
        self._known_lanes[known] = found
        if len(self._known_lanes) > _PLANS_KEPT:
            self._known_lanes.popitem(last=False)
        return found

    def start_run(self, plan: RunPlan, observation: Observation, lanes: Lanes) -> None:
        """Begin to record."""
        self._run = _Run(plan, observation, lanes)
        lanes.open(self._observer.handle)

    def end_run(self) -> None:
        """Hold nothing of a run that is over."""
        self._run = None

    @property
    def _current(self) -> _Run:
        assert self._run is not None
        return self._run

    @property
    def _watching(self) -> Watching:
        watching = self._current.plan.watching
        assert watching is not None
        return watching

    # --- which outputs are recorded ------------------------------------------------------------------

    def taps(self, node: int, slot: int) -> tuple[int, ...]:
        """What to do with an output: pairs of a lane and a key."""
        run = self._current
        return run.lanes.taps(run.plan, self._nodes[node], slot, self._observer.handle)

    def tap(self, number: int, slot: int, tensor: torch.Tensor) -> None:
        """Show a tensor that the observer cannot read itself, or that Python wants to see."""
        run, node = self._current, self._nodes[number]
        name = node.tensor(slot)
        if name in run.plan.captures:
            run.observation.capture(TENSORS, name, tensor)
        for tap in run.plan.all_taps:
            try:
                tap(node, slot, tensor)
            except Exception:
                run.observation.fault(f"tapping {name!r}")

    def without_data(self, node: int, slot: int) -> None:
        """Note a tensor whose memory had been freed."""
        self._current.observation.without_data.add(self._nodes[node].tensor(slot))

    # --- bad values ----------------------------------------------------------------------------------

    def wants_bad(self, number: int, kinds: int) -> bool:
        """Whether the values are wanted of a node that has made such bad ones of good ones."""
        return self._watching.bad.wants(self._nodes[number], kinds)

    def made_bad(
        self,
        number: int,
        outputs: tuple[torch.Tensor, ...],
        values: tuple[int, ...],
        tensors: tuple[torch.Tensor | None, ...],
        began: int,
    ) -> None:
        """Have the values recorded of a node that has made a bad one of good ones."""
        names = map(self._numbers.tensor_name, values)
        self._watching.bad.keep(self._nodes[number], outputs, zip(names, tensors, strict=True), began)

    def tell_of_bad(
        self, observation: Observation, gone: list[int], arrivals: list[tuple[int, int, int]]
    ) -> None:
        """What has become of the bad values of a run that is over, and where those from outside came from."""
        name_of = self._numbers.tensor_name
        observation.gone += map(name_of, gone)
        observation.came_from.update(
            (name_of(value), (run, name_of(origin))) for value, run, origin in arrivals
        )

    # --- where records go ----------------------------------------------------------------------------

    def take(
        self, lane: int, rows: Any, data: Any, muted: int, has_bad: bool, base: int, nbytes: int
    ) -> None:
        """Take over records that nobody else has any more.

        Args:
            lane: they are of.
            rows: one for each record.
            data: what belongs to them.
            muted: how many were not made because they would have been healthy.
            has_bad: whether one tells of a NaN or an infinity.
            base: the time of the first.
            nbytes: of their values.
        """
        run = self._run
        assert run is not None
        watching = run.plan.watching
        assert watching is not None
        if muted:
            run.lanes.count_muted(watching, lane, muted)
        if len(rows):
            run.lanes.hand_over(watching, lane, rows, data, has_bad, base, nbytes)

    def flush_later(self) -> None:
        """Have the records gathered so far handed over soon, even if the program hangs in its next op.

        The observer asks once, until `flush_is_due` has reached it.
        """
        if not self._flush_is_due:
            self._flush_is_due = True
            shared_queue().call_later(MAX_AGE_SECS, partial(_flush, weakref.ref(self)))

    def flush_is_due(self) -> None:
        """Hand over what the present run has gathered, called by another thread."""
        self._flush_is_due = False
        if not self._library.tt_flush(self._observer.handle):  # its thread was at work: nothing hangs, so far
            self.flush_later()


def _flush(records: weakref.ref[Records]) -> None:
    found, queue = records(), shared_queue()
    if found is None:
        return
    # This is the thread of the queue: if it has much to do, it must not wait for itself to have less.
    if queue.pending_bytes < queue.max_bytes // 2:
        found.flush_is_due()
    else:
        queue.call_later(MAX_AGE_SECS, partial(_flush, records))
