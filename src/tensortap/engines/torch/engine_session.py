"""What PyTorch adds to a session: the program behind it, its interceptors, compiled functions, checkpoints."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tensortap.engines.observe import observation
from tensortap.engines.session.core import EngineSession
from tensortap.engines.session.request import Request
from tensortap.engines.torch import checkpoint, devices
from tensortap.engines.torch.choice import Interceptors
from tensortap.engines.torch.feeds import fitting
from tensortap.engines.torch.finite import non_finite_state
from tensortap.engines.torch.forgetting import Forgetting
from tensortap.engines.torch.guard import SessionGuard
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.memory import readable
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.profiling import has_compiled_modules, step_recorded
from tensortap.engines.torch.program import Program, variable_node
from tensortap.engines.torch.schema import UNINITIALISED
from tensortap.engines.torch.tensors import TENSORS
from tensortap.engines.torch.updates import UpdateCollector
from tensortap.engines.torch.values import snapshot
from tensortap.errors import FeedError
from tensortap.records import Device, Node, Update
from tensortap.seam.base import NonFinite
from tensortap.seam.options import RunOptions

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching

__all__ = ["TorchSession"]

log = logging.getLogger("tensortap.engine")


class TorchSession(EngineSession):
    """The part of a session that knows PyTorch; goes before the class that says what a run is."""

    engine = "torch"
    tensors = TENSORS
    plan_type = RunPlan
    unwritten = UNINITIALISED

    def set_up(self, program: Program, interceptor: str | None) -> None:
        """To be called first by whoever has both."""
        self.program = program
        self._interceptors = Interceptors(interceptor)
        self._per_thread = threading.local()
        self._said_compiled = False
        self._nothing_compiled = False  # until a run has shown it
        self.forgetting: Forgetting | None = None
        """For a process of many programs: when to let go of what was learned of those before; None for never."""

    def state_nodes(self) -> Iterator[Node]:
        """A node for every parameter, buffer and optimizer state there is."""
        for name, tensor, position in self.program.variables():
            yield variable_node(name, tensor, device=devices.name_of(tensor.device), position=position)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Live state tensors by tensor name."""
        return {f"{name}:0": tensor for name, tensor, _ in self.program.variables()}

    def list_devices(self) -> list[Device]:
        """The CPU and the accelerators of this process."""
        return devices.list_devices()

    def rank(self) -> int:
        """Of the process group, or as the launcher has said."""
        return devices.rank()

    @property
    def is_observed_natively(self) -> bool:
        """Whether the native interceptor observes runs that it can observe."""
        return self._interceptors.is_native

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether the present run has made a tensor, and nobody has written to it yet."""
        return self._names().is_unwritten(tensor)

    def release(self) -> None:
        """Remove what has stayed installed after a run, in the thread of that run."""
        if self.stays_installed:
            self._interceptors.release()

    def save_state(self, path: Path) -> None:
        """Write modules, optimizers, schedulers, step and random generators to one file."""
        checkpoint.save_state(self.program, self._global_step, Path(path))

    def load_state(self, path: Path) -> None:
        """Put the state of a file in place."""
        self._global_step = checkpoint.load_state(self.program, Path(path))

    def collect_updates(self, write: Callable[[Update], None]) -> UpdateCollector:
        """What looks at steps of optimizers."""
        return UpdateCollector(self.program, lambda: self.global_step, write)

    def guard(self) -> SessionGuard:
        """What looks at runs that nobody watches."""
        guard = SessionGuard(self.program)
        self._per_thread.guard = guard
        return guard

    def finish(self, request: Request, result: Any, seen: observation.Observation, *rest: Any) -> Any:
        """Show the guard what a run has returned."""
        guard: SessionGuard | None = getattr(self._per_thread, "guard", None)
        if guard is not None:
            guard.returned(result)
        return super().finish(request, result, seen, *rest)

    def non_finite_state(self) -> Iterable[NonFinite]:
        """Parameters, buffers and optimizer states that hold NaN or infinities."""
        return non_finite_state(self.program)

    # --- observing ---------------------------------------------------------------------------------

    def plan_of(
        self, request: Request, options: RunOptions, inputs: Mapping[str, Any], watching: Watching | None
    ) -> RunPlan:
        """What a run is observed for, and whether compiled functions stay so meanwhile."""
        plan = super().plan_of(request, options, inputs, watching)
        assert isinstance(plan, RunPlan)
        plan.stays_compiled = self._stays_compiled(request, options, watching)
        return plan

    def plan_again(
        self, plan: observation.RunPlan, request: Request, options: RunOptions
    ) -> observation.RunPlan:
        """Compiled functions may have come, or turned out not to be there."""
        assert isinstance(plan, RunPlan)
        plan.stays_compiled = self._stays_compiled(request, options, plan.watching)
        return plan

    def intercepted(self, plan: observation.RunPlan) -> AbstractContextManager[Observation]:
        """Watch the ops of the block with the interceptor that can do what the plan wants."""
        assert isinstance(plan, RunPlan)
        return self._interceptors.for_run(plan).observe(plan, self.program, self._graph, self._names())

    def measured(self, options: RunOptions, seen: observation.Observation) -> AbstractContextManager[Any]:
        """With PyTorch's profiler, if the options ask for it."""
        assert isinstance(seen, Observation)
        return step_recorded(options, seen)

    def unobserved(self, options: RunOptions) -> AbstractContextManager[Observation] | None:
        """A compiled program is measured as it is: observing would make it run eagerly."""
        return _measured_only(options) if self.runs_compiled else None

    def after_observing(
        self, plan: observation.RunPlan, seen: observation.Observation, is_only_measured: bool
    ) -> None:
        """Take note of compiled functions."""
        super().after_observing(plan, seen, is_only_measured)
        assert isinstance(plan, RunPlan)
        assert isinstance(seen, Observation)
        if self.forgetting is not None:
            self.forgetting.note_run(len(seen.nodes))
        if plan.stays_compiled:  # some other step of the program may be the compiled one
            self._nothing_compiled = not seen.stayed_compiled
        elif seen.ran_compiled:
            self._nothing_compiled = False
        if seen.ran_compiled and is_only_measured:
            seen.profile = None  # the next one is of the compiled code, now that it is known
        if seen.ran_compiled and not self._said_compiled:
            self._said_compiled = True
            log.warning(
                "This step calls a function compiled by torch.compile. Watched runs execute it eagerly, so "
                "that every op is seen; values may differ from the compiled ones by rounding. Other runs "
                "stay compiled."
            )

    @contextmanager
    def fed_state(self, feeds: Mapping[str, Any]) -> Iterator[None]:
        """Give parameters and other state the fed values for one run, and put the old ones back after it."""
        if not feeds:
            yield
            return
        tensors = self.state_tensors()
        places = {name: readable(tensors[name]) for name in feeds}
        for name, place in places.items():
            if place is None:
                raise FeedError(f"Cannot feed {name!r}: it has no memory to put a value into.")
        replaced = [
            (place, fitting(name, feeds[name], place)) for name, place in places.items() if place is not None
        ]
        old = [(tensor, snapshot(tensor)) for tensor, _ in replaced]
        # Through .data, which leaves version counters alone: a graph kept from before must still be usable.
        try:
            for (tensor, value), name in zip(replaced, feeds, strict=True):
                try:
                    tensor.data.copy_(value)
                except RuntimeError as error:
                    raise FeedError(f"Cannot feed {name!r}: {error}") from error
            yield
        finally:
            for tensor, value in old:
                with suppress(RuntimeError):  # it could not be changed in the first place
                    tensor.data.copy_(value)

    def _names(self) -> RunNames:
        # Two threads may run one session; each counts its own ops and so gives the same names.
        table: RunNames | None = getattr(self._per_thread, "names", None)
        if table is None:
            table = self._per_thread.names = RunNames()
        return table

    def before_observing(self) -> None:
        """Leave names, graph and plans behind that have become too many, and begin anew."""
        names = self._names()
        if self.forgetting is None or not self.forgetting.is_due(names):
            return
        heir = RunNames()
        heir.survivors = names.survivors
        if self._interceptors.replace(names, heir):
            from tensortap.watch.plan import forget_plans

            self._per_thread.names = heir
            self._graph.forget()
            forget_plans()

    @property
    def runs_compiled(self) -> bool:
        """Whether some of the program is compiled, as far as is known."""
        return self._said_compiled or has_compiled_modules(self.program)

    def _stays_compiled(self, request: Request, options: RunOptions, watching: Watching | None) -> bool:
        """Whether compiled functions can make all that a run wants of them, in a program that asked for it."""
        return (
            "tensortap.engines.torch.compiled" in sys.modules
            and not self._nothing_compiled
            and watching is not None
            and watching.publisher.takes_summaries_only
            and not watching.stops
            and not (request.captures or request.feeds or options.taps or options.timeout_in_ms > 0)
            and all(parameter.is_cpu for _, parameter in self.program.parameters())
        )


@contextmanager
def _measured_only(options: RunOptions) -> Iterator[Observation]:
    seen = Observation()
    with step_recorded(options, seen):
        yield seen
