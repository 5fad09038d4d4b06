"""The interface between a PyTorch session and whatever sees the ops of a run.

There are two interceptors; the same contract tests run on each.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tensortap.engines.observe import observation
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.program import Program
from tensortap.seam.graph import Graph

__all__ = ["Interceptor", "Observation", "RunPlan"]


@dataclass
class RunPlan(observation.RunPlan):
    """What a run is to be observed for.

    Attributes:
        stays_compiled: compiled functions are not executed eagerly, but compiled with taps, whose summaries are
            all that the run wants of them.
    """

    stays_compiled: bool = False


@dataclass
class Observation(observation.Observation):
    """What was seen of a run.

    Attributes:
        ran_compiled: a compiled function was executed eagerly so that it could be seen.
        stayed_compiled: a compiled function made its summaries itself.
        executions: of a traced run, what the native interceptor noted of each output: five numbers of 64 bits, the
            node's place in `nodes`, thread, number of the call on that thread, slot, address of the memory.
    """

    ran_compiled: bool = False
    stayed_compiled: bool = False
    executions: bytearray = field(default_factory=bytearray)


class Interceptor(Protocol):
    """Sees every op of a run."""

    can_interfere: bool
    """Whether it can replace values and end a run, or only look at it."""

    def observe(
        self, plan: RunPlan, program: Program, graph: Graph, names: RunNames
    ) -> AbstractContextManager[Observation]:
        """Watch the block. Everything it installs is gone when the block ends, however it ends, or may stay if the
        plan says so."""

    def release(self) -> None:
        """Remove what has stayed installed, in the thread that observed; harmless when nothing has."""

    def replace(self, names: RunNames, heir: RunNames) -> bool:
        """Forget what is known by the names of a table that another takes the place of; False if they are in use."""
