"""Gives meaning to the numbers of an observer, and surrounds its runs.

The observer knows operators, scopes, names ("entries"), nodes and values by number. There is one decoder for each name
table, so numbers stay valid for a session. What they mean is kept by its parts (`answers.py` lists which knows what);
here is what has to do with a run as a whole, and with the modules and optimizers that are executing.
"""

from __future__ import annotations

import ctypes
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch import lines
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.observer.answers import Answers
from tensortap.engines.torch.observer.installation import Installation
from tensortap.engines.torch.observer.known import KnownSources
from tensortap.engines.torch.observer.library import NativeObserver, Scope
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.engines.torch.observer.numbers import SLOT_BITS, SLOT_MASK, Numbers
from tensortap.engines.torch.observer.records import Records
from tensortap.engines.torch.observer.sources import NativeSources
from tensortap.engines.torch.outside import Outside
from tensortap.engines.torch.program import Program
from tensortap.records import Position

__all__ = ["Decoder"]

_EXECUTION_BYTES = 40


class _Run:
    """What belongs to one observed run."""

    __slots__ = ("observation", "outside", "plan", "program", "session")

    def __init__(
        self, plan: RunPlan, program: Program, observation: Observation, outside: Outside, session: int
    ) -> None:
        self.plan = plan
        self.program = program
        self.observation = observation
        self.outside = outside
        self.session = session


class Decoder:
    """Gives meaning to the numbers of one observer."""

    def __init__(self, names: RunNames) -> None:
        self._names = names
        self._numbers = numbers = Numbers(names)
        answers = Answers()
        self._observer = observer = NativeObserver(
            answers, numbers.label("const"), numbers.label("as_strided")
        )
        self._library, self._handle = observer.library, observer.handle
        self._nodes = Nodes(observer, numbers)
        self._records = Records(observer, numbers, self._nodes)
        self._sources = NativeSources(observer, names, numbers, self._nodes)
        self._known = KnownSources(observer, numbers, self._nodes, self._sources)
        self._codes = lines.classifications()
        self._run: _Run | None = None
        self._installation: Installation | None = None
        self._scope = Scope.from_address(self._library.tt_scope(self._handle))
        answers.come_from(self, numbers, self._nodes, self._records)

    def __del__(self) -> None:
        if getattr(self, "_installation", None) is not None:
            self.release()

    @property
    def is_busy(self) -> bool:
        """Whether a run is being observed already: the program runs its session inside of itself."""
        return self._run is not None

    @property
    def _current(self) -> _Run:
        assert self._run is not None
        return self._run

    def inherit(self, other: Decoder) -> None:
        """Take over the bad values that have outlived the runs of another decoder, under their names there."""
        entries: dict[str, int] = {}
        values = []
        for value in self._library.tt_survivors(other._handle):
            name = other._numbers.entries[value >> SLOT_BITS].name
            if name not in entries:
                entries[name] = self._library.tt_reserve_entry(self._handle)
                self._numbers.set_entry(entries[name], NameEntry(name))
            values.append(entries[name] << SLOT_BITS | value & SLOT_MASK)
        if values:
            self._library.tt_inherit(self._handle, other._handle, values)

    # --- one run -----------------------------------------------------------------------------------

    def begin(self, plan: RunPlan, program: Program, observation: Observation) -> None:
        """Begin to observe; `end` leaves the nodes of the run in the observation."""
        self._names.start_run()
        self._names.is_unwritten = self._sources.is_unwritten
        lanes = self._records.lanes_for(plan)
        session = self._begin(plan, lanes.handle)
        outside = Outside(program, self._sources, self._sources, observation)
        run = self._run = _Run(plan, program, observation, outside, session)
        try:
            self._records.start_run(plan, observation, lanes)
            self._nodes.start_run(observation)
            if self._codes != (codes := lines.classifications()):
                self._codes = codes
                self._library.tt_forget_codes(self._handle)
            self._install(plan, program)
            self._library.tt_start(self._handle, session)
        except BaseException as error:
            try:
                self._put_away(plan)
            finally:
                self._close(run, error)
            raise

    def end(self, error: BaseException | None) -> None:
        """The run is over, by an error of the program perhaps."""
        run = self._current
        try:
            try:
                self._library.tt_stop(self._handle, run.session)
            finally:
                self._put_away(run.plan)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._close(run, error)

    def _put_away(self, plan: RunPlan) -> None:
        if self._installation is not None:
            self._installation.scopes.forget()
        if not plan.stays_installed:
            self.release()

    def _close(self, run: _Run, error: BaseException | None) -> None:
        library, handle, observation = self._library, self._handle, run.observation
        if error is not None:
            observation.failed = self._nodes.failure(error)
        numbers, observation.unrecorded, observation.met, gone, arrivals = library.tt_outcome(handle)
        executed = self._nodes.executed(numbers)
        if run.plan.traced:  # whoever measures it holds the list
            observation.nodes[:] = executed
        else:
            observation.nodes = executed  # type: ignore[assignment]  # nobody adds to it any more
        if gone or arrivals:
            self._records.tell_of_bad(observation, gone, arrivals)
        if run.plan.traced:
            nbytes = _EXECUTION_BYTES * library.tt_execution_count(handle)
            observation.executions += ctypes.string_at(library.tt_executions(handle), nbytes)
        library.tt_end(handle, run.session)
        self._records.end_run()
        self._nodes.end_run()
        self._run = None

    def _begin(self, plan: RunPlan, lanes: int) -> int:
        """Tell the observer what it is to do in a run."""
        library, handle = self._library, self._handle
        emits = bool(plan.taps or plan.captures or plan.watching is not None)
        keep_bad = 0 if plan.watching is None else plan.watching.bad.limit
        index = -1 if plan.watching is None else plan.watching.publisher.info.index
        limits = plan.limits
        most = (-1, -1, -1) if limits is None else (limits.nodes, limits.new, limits.outside)
        session: int = library.tt_begin(handle, lanes, emits, keep_bad, index, *most)
        if plan.traced:
            library.tt_trace(handle)
        return session

    def _install(self, plan: RunPlan, program: Program) -> None:
        """Have PyTorch tell of this run, and know the tensors that are there before it."""
        if self._installation is not None and not self._installation.is_for(program, plan.traced):
            self.release()
        known, outside, installation = self._known, self._current.outside, self._installation
        is_as_before = known.name_again(program, outside, plan.inputs, installation is not None)
        if is_as_before and installation is not None:
            return
        with program.held_still():
            if not is_as_before:
                known.forget()
            if installation is None:
                installation = self._installation = Installation(program, self, self._observer, plan.traced)
            installation.fit(known.version)
            if not is_as_before:  # the hooks of parameters are there by now, and part of what is known
                known.name_anew(program, outside, plan.inputs)

    def release(self) -> None:
        """Leave PyTorch as it was, if something has stayed installed there after a run."""
        installation, self._installation = self._installation, None
        if installation is not None:
            installation.remove()

    def release_here(self) -> None:
        """The same, if it was installed for this thread."""
        if self._installation is not None and self._installation.is_here():
            self.release()

    def limit_reached(self) -> None:
        """The run has become too long: what follows is only counted."""
        limits = self._current.plan.limits
        if limits is not None:
            limits.reached = True

    def fault(self, where: str, what: str) -> None:
        """Count a failure of the observer."""
        if self._run is not None:
            self._run.observation.fault(f"{where} ({what})")

    # --- modules and optimizers that are executing -------------------------------------------------

    def unknown_module(self, module: nn.Module, parent: int) -> int:
        """The scope of a module that the program was not known to have."""
        above = self._numbers.scope_name(parent).removeprefix("recompute/")
        path = self._current.program.path_of_unknown(module, above)
        return self._numbers.scope(f"{path}/", Position("forward", path))

    def enter_root(self, scope: int, module: nn.Module, args: Any) -> None:
        """A module is called from outside all modules: name what it is given."""
        self.name_module_inputs(self._numbers.scope_name(scope)[:-1], module, args)

    def name_module_inputs(self, path: str, module: nn.Module, args: Any) -> None:
        """Name what a module is given from outside."""
        self._current.outside.name_module_inputs(path, module, args)

    def name_optimizer_state(self, scope: str, optimizer: Optimizer) -> None:
        """Name the state of an optimizer that begins to step."""
        self._known.name_state(self._current.outside, scope, optimizer)

    def find_new_state(self) -> bool:
        """Look again for state that the running optimizer has made in this very step."""
        outside = self._current.outside
        grown = outside.grown()
        if grown is None:
            return False
        self._known.name_state(outside, *grown)
        return True

    def step_in(self, scope: str, frame: FrameType | None) -> None:
        """Tell the observer which optimizer steps (none: without a frame), and how to know that it has left."""
        self._scope.in_optimizer = frame is not None
        self._scope.scope = self._numbers.scope(scope, Position("optimizer")) if scope else 0
        self._library.tt_step_in_frame(self._handle, frame)

    def optimizer_left(self) -> None:
        """The step of an optimizer is no longer on the stack: it raised, and the program went on."""
        if self._installation is not None:
            self._installation.scopes.forward_scope()
            self._installation.scopes.publish()
