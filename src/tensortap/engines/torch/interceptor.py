"""The interface between a session and whatever sees the ops of a run.

A session describes what it wants of a run (`RunPlan`), enters the interceptor around the step, and reads the
`Observation` afterwards. There may be several interceptors; the same contract tests run on each.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tensortap.engines.graph import Graph
from tensortap.engines.options import Tap
from tensortap.engines.torch.limits import Limits
from tensortap.engines.torch.memory import readable
from tensortap.engines.torch.names import NameTable
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.values import snapshot
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.engines.torch.watching import Watching
    from tensortap.profile.step import StepProfile

__all__ = ["Interceptor", "Observation", "RunPlan"]

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
        stays_compiled: compiled functions are not executed eagerly, but compiled with taps, whose summaries are
            all that the run wants of them.
        traced: PyTorch's profiler records the run; note what it takes to find the nodes in its record.
        limits: beyond which the run is not recorded; None for a run that is recorded whole.
        stays_installed: another run follows at once: what is installed may stay until `Interceptor.release`.
    """

    captures: frozenset[str] = frozenset()
    feeds: Mapping[str, Any] = field(default_factory=dict)
    taps: tuple[Tap, ...] = ()
    watching: Watching | None = None
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    deadline: float | None = None
    stays_compiled: bool = False
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
        ran_compiled: a compiled function was executed eagerly so that it could be seen.
        stayed_compiled: a compiled function made its summaries itself.
        executions: of a traced run, what the native interceptor noted of each output: five numbers of 64 bits, the
            node's place in `nodes`, thread, number of the call on that thread, slot, address of the memory.
        profile: of a traced run, what was measured; None if it could not be.
        unrecorded: how many ops were only counted, because the run went over its limits.
        came_from: of tensors that came bad from outside, the run and the tensor of it that they are from.
        gone: bad tensors whose memory was free when the run ended.
        faults: how many times observing itself failed; the program went on unharmed.
    """

    nodes: list[Node] = field(default_factory=list)
    captured: dict[str, torch.Tensor] = field(default_factory=dict)
    fed: set[str] = field(default_factory=set)
    without_data: set[str] = field(default_factory=set)
    failed: tuple[BaseException, Node] | None = None
    ran_compiled: bool = False
    stayed_compiled: bool = False
    executions: bytearray = field(default_factory=bytearray)
    profile: StepProfile | None = None
    unrecorded: int = 0
    came_from: dict[str, tuple[int, str]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    faults: int = 0

    def capture(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a copy of a wanted value."""
        if readable(tensor) is None:
            self.without_data.add(name)
        else:
            self.captured[name] = snapshot(tensor)

    def fault(self, where: str) -> None:
        """Count a failure of our own, say the first one, and let the program go on."""
        self.faults += 1
        if self.faults == 1:
            log.warning(
                "tensortap failed %s; the run goes on, its record is incomplete",
                where,
                exc_info=sys.exc_info()[0] is not None,
            )


class Interceptor(Protocol):
    """Sees every op of a run."""

    can_interfere: bool
    """Whether it can replace values and end a run, or only look at it."""

    def observe(
        self, plan: RunPlan, program: Program, graph: Graph, names: NameTable
    ) -> AbstractContextManager[Observation]:
        """Watch the block. Everything it installs is gone when the block ends, however it ends, or may stay if the
        plan says so."""

    def release(self) -> None:
        """Remove what has stayed installed, in the thread that observed; harmless when nothing has."""

    def replace(self, names: NameTable, heir: NameTable) -> bool:
        """Forget what is known by the names of a table that another takes the place of; False if they are in use."""
