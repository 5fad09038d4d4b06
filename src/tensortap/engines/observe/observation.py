"""The interface between a session and whatever sees the ops of a run.

A session describes what it wants of a run (`RunPlan`), has the engine surround the step with an interceptor, and reads
the `Observation` afterwards. Engines may add to both.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensortap.engines.observe.limits import Limits
from tensortap.engines.tensors import Tensors
from tensortap.records import Node
from tensortap.seam.options import Tap

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching
    from tensortap.seam.measured import StepProfile

__all__ = ["NOT_OBSERVED", "Observation", "RunPlan"]

log = logging.getLogger("tensortap.engine")


@dataclass
class RunPlan:
    """What a run is to be observed for.

    Attributes:
        captures: names of tensors whose value is wanted.
        feeds: values that replace the output of a node, by tensor name.
        taps: functions that see every tensor.
        watching: shows watched tensors to their sinks.
        inputs: tensors handed to the step, by placeholder name.
        deadline: `time.monotonic()` value after which the run gives up, or None.
        traced: the framework's profiler records the run; note what it takes to find the nodes in its record.
        limits: beyond which the run is not recorded; None for a run that is recorded whole.
        stays_installed: another run follows at once: what is installed may stay until the session is released.
    """

    captures: frozenset[str] = frozenset()
    feeds: Mapping[str, Any] = field(default_factory=dict)
    taps: tuple[Tap, ...] = ()
    watching: Watching | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    deadline: float | None = None
    traced: bool = False
    limits: Limits | None = None
    stays_installed: bool = False

    @property
    def all_taps(self) -> tuple[Tap, ...]:
        """Everything that sees every tensor."""
        return self.taps if self.watching is None else (*self.taps, self.watching.tap)

    @classmethod
    def until(cls, timeout_in_ms: int) -> float | None:
        """The deadline of a run that starts now."""
        return time.monotonic() + timeout_in_ms / 1000 if timeout_in_ms > 0 else None


@dataclass
class Observation:
    """What was seen of a run.

    Attributes:
        nodes: executed nodes in order, sources at their first use.
        captured: copies of the wanted values, by tensor name, made when each was complete.
        fed: names of the feeds that took effect.
        without_data: tensors that could not be read when they were made: their memory had been freed, or they are
            only a shape.
        failed: the exception an op raised and the node it would have been.
        profile: of a traced run, what was measured; None if it could not be.
        unrecorded: how many ops were only counted, because the run went over its limits.
        met: when ranks first exchanged something, in microseconds since the epoch; 0 if nobody has seen that.
        came_from: of tensors that came bad from outside, the run and the tensor of it that they are from.
        gone: bad tensors whose memory was free when the run ended.
        faults: how many times observing itself failed; the program went on unharmed.
    """

    nodes: list[Node] = field(default_factory=list)
    captured: dict[str, Any] = field(default_factory=dict)
    fed: set[str] = field(default_factory=set)
    without_data: set[str] = field(default_factory=set)
    failed: tuple[BaseException, Node] | None = None
    profile: StepProfile | None = None
    unrecorded: int = 0
    met: int = 0
    came_from: dict[str, tuple[int, str]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    faults: int = 0

    def capture(self, tensors: Tensors, name: str, tensor: Any) -> None:
        """Keep a copy of a wanted value."""
        if tensors.readable(tensor) is None:
            self.without_data.add(name)
        else:
            self.captured[name] = tensors.snapshot(tensor)

    def fault(self, where: str) -> None:
        """Count a failure of our own, say the first one, and let the program go on."""
        self.faults += 1
        if self.faults == 1:
            log.warning(
                "tensortap failed %s; the run goes on, its record is incomplete",
                where,
                exc_info=sys.exc_info()[0] is not None,
            )


NOT_OBSERVED = Observation()
"""What is known of a run that nobody looked into."""
