"""Looking at updates: at the first ones of each optimizer, then at ever fewer, and at those that are unlike all before.

Nothing is looked at inside an operation. Hooks of optimizers say when a step begins and ends; parameters are read from
memory, a sample of each (`samples.py`); what the loss leads to is known from autograd (`gradients.py`). An update that
is not looked at costs the comparison of what led to it with what is known (`course.py`).
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import weakref
from collections.abc import Callable, Container, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tensortap.engines.torch import backward_passes
from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.program import Program, clean_path
from tensortap.engines.torch.tracing import is_being_traced
from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.engines.torch.updates.alive import LivingGraphs
from tensortap.engines.torch.updates.course import LATE_BEGIN, Course
from tensortap.engines.torch.updates.declared import line_of_parameter
from tensortap.engines.torch.updates.events import Events, name_around, own_line
from tensortap.engines.torch.updates.gradients import AppliedGradients, leaves_behind
from tensortap.engines.torch.updates.loaders import Loaders
from tensortap.engines.torch.updates.looks import signature_of
from tensortap.engines.torch.updates.parameters import KnownParameters, ListedParameters, SeenParameters
from tensortap.engines.torch.updates.registered import RegisteredParameters
from tensortap.engines.torch.updates.samples import number_of
from tensortap.engines.torch.updates.strays import Strays
from tensortap.records import Event, Frame, Group, Mode, Update

__all__ = ["UpdateCollector"]

log = logging.getLogger("tensortap.checks")

_MANY_OPTIMIZERS = 16
"""A program with so many has one for each parameter: each is asked about its own parameters only."""

_MANY_MADE = 16
"""Where so many have been made, as in a suite of tests, new ones are looked at if they live for longer than most."""

_MOST_PARAMETERS = 20_000
_MOST_EVENTS_TOLD = 64


class UpdateCollector:
    """Looks at the updates of a program, until it is closed.

    Args:
        program: knows what parameters are called.
        step: asked for the global step.
        write: called with each update that was looked at.
    """

    def __init__(self, program: Program, step: Callable[[], int], write: Callable[[Update], None]) -> None:
        self._program = program
        self._step = step
        self._write = write
        self._generation = generation()
        self._thread: int | None = None
        self._steps = 0
        self._courses: weakref.WeakKeyDictionary[Optimizer, Course] = weakref.WeakKeyDictionary()
        self._events = Events(self)
        self._applied = AppliedGradients()
        self._strays = Strays()
        self._known = KnownParameters()
        self._graphs = LivingGraphs()
        self._loaders = Loaders()
        self._registered = RegisteredParameters()
        self._reached: dict[int, Any] | None = {}
        self._modes: tuple[Mode, ...] = ()
        self._looks_next = True
        self._looking: set[Course] = set()
        self._awake: set[Course] = set()  # whose next update is looked at or compared
        self._made = 0
        self._before: _Before | None = None
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        backward_passes.listen(self)

    def close(self) -> None:
        """Look at nothing more; harmless when called again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        backward_passes.stop_listening(self)
        self._events.close()
        self._loaders.close()
        self._registered.close()
        self._applied.forget()

    @property
    def steps(self) -> int:
        """Of all optimizers, those left out included."""
        return self._steps

    # --- what is heard -----------------------------------------------------------------------------

    def made(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        """An optimizer has been made here."""
        self.course_of(optimizer).made = own_line(frame)

    def scheduled(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        """A schedule for its learning rate has been made here."""
        self._attempt(self._on_schedule, optimizer, frame)

    def skipped(self, optimizer: Optimizer, frame: FrameType) -> None:
        """A gradient scaler has left a step out."""
        self._attempt(self._on_skip, optimizer, frame)

    def backward_begins(self, outputs: Any, accumulates: bool, keeps: bool) -> None:
        """A backward pass begins."""
        if self._events.listens:
            self._attempt(self._on_backward, outputs, accumulates, sys._getframe(2))

    def backward_ends(self, gradients: Any) -> None:
        """A backward pass is over."""
        if self._looks_next:
            self._attempt(self._applied.after_backward)

    @never_compiled  # type: ignore[type-var]
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._events.listens:
            self._attempt(self._on_step, optimizer, args, kwargs, sys._getframe(1))

    @never_compiled  # type: ignore[type-var]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._events.listens and self._thread == threading.get_ident():
            course = self._courses.get(optimizer)
            if course is not None and course.count + 1 < course.wakes_at:
                self._steps += 1
                course.count += 1
                course.last_step = self._steps
                return
        self._attempt(self._on_stepped, optimizer)

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        if self._thread != threading.get_ident() and self._thread is not None:
            return
        if not self._handles or is_being_traced() or generation() != self._generation:
            return
        try:
            action(*arguments)
        except Exception:
            self.close()
            log.warning("Updates are not looked at any more, because of a fault of tensortap.", exc_info=True)

    # --- the way of an update ----------------------------------------------------------------------

    def _on_backward(self, outputs: Any, accumulates: bool, frame: FrameType) -> None:
        self._belong_to_this_thread()
        self._events.note(Event("backward" if accumulates else "gradient"), frame)
        if self._looks_next and accumulates:
            with unnoticed():
                self._look_at_graph(outputs, own_line(frame))

    def _look_at_graph(self, outputs: Any, source: Frame | None) -> None:
        self._applied.before_backward()
        self._modes = self._modes_now()
        self._graphs.mark(outputs, source)
        found = None if self._reached is None else leaves_behind(outputs)
        if found is None:
            self._reached = None
        elif self._reached is not None:
            self._reached.update(found)

    def _on_step(self, optimizer: Optimizer, args: Any, kwargs: Any, frame: FrameType) -> None:
        self._belong_to_this_thread()
        course = self.course_of(optimizer)
        self._events.note(Event("step", course.name), frame)
        # Of what led to the step of one that sleeps, only a part was heard.
        if course.count < course.wakes_at or not course.wants(self._signature(optimizer, course)):
            return
        has_closure = any(callable(each) for each in (*args[1:], *kwargs.values()))
        with unnoticed():
            if course.variable is None:
                course.variable = name_around(frame, optimizer)
            seen = self._parameters_before(optimizer, course)
            if not course.count:
                self._find_unwritten(seen)
            self._before = _Before(optimizer, self._step(), has_closure, own_line(frame), seen, frame)

    def _on_stepped(self, optimizer: Optimizer) -> None:
        before, self._before = self._before, None
        course = self.course_of(optimizer)
        if before is not None and before.optimizer is optimizer:
            with unnoticed():
                self._write(self._update(before, course))
        self._end(optimizer, course)

    def _on_skip(self, optimizer: Optimizer, frame: FrameType) -> None:
        course = self.course_of(optimizer)
        self._events.note(Event("skip", course.name), frame)
        if course.wants(("skip",)):
            if course.variable is None:
                course.variable = name_around(frame, optimizer)
            before = _Before(optimizer, self._step(), False, own_line(frame), None, frame)
            with unnoticed():
                self._write(self._update(before, course, is_skipped=True))
        self._end(optimizer, course)

    def _on_schedule(self, optimizer: Optimizer, frame: FrameType) -> None:
        self.course_of(optimizer).schedule = own_line(frame)

    def _end(self, optimizer: Optimizer, course: Course) -> None:
        self._steps += 1
        course.count += 1
        course.events_before = self._events.number
        course.last_step = self._steps
        if course.looks_next:
            self._looking.add(course)
        else:
            self._looking.discard(course)
        if course.sleep():
            self._awake.discard(course)
        else:
            self._awake.add(course)
        looked = self._looks_next
        self._looking, self._awake = self._awaited(self._looking), self._awaited(self._awake)
        self._looks_next = bool(self._looking)
        self._events.wants_lines = self._looks_next
        self._events.listens = self._looks_next or bool(self._awake)
        self._reached = {} if self._looks_next else None
        if self._looks_next:
            with unnoticed():
                self._applied.after_step(_parameters_of(optimizer))
        elif looked:
            self._applied.forget()

    def _awaited(self, courses: set[Course]) -> set[Course]:
        """Those of optimizers that may step next: not one that has not stepped for long."""
        if not courses:
            return courses
        patience = 4 * max(len(self._courses), 1)
        return {each for each in courses if self._steps - each.last_step <= patience}

    def _signature(self, optimizer: Optimizer, course: Course) -> Any:
        """What makes an update unlike others: what led to it, modes of models, the decade of the learning rate."""
        if len(self._courses) > _MANY_OPTIMIZERS:
            return None
        led: list[tuple[str, str]] = []
        for what, who, _ in self._events.since(course.events_before):
            if not led or led[-1] != (what, who):
                led.append((what, who))
        modes = tuple([module.training for module in self._program.modules.values()])
        rates = tuple([_decade(group.get("lr")) for group in optimizer.param_groups])
        return tuple(led), modes, rates

    # --- what is told of it ------------------------------------------------------------------------

    def _parameters_before(self, optimizer: Optimizer, course: Course) -> SeenParameters:
        """The parameters of an optimizer and of all models as they are before its step."""
        everyone = {other: _parameters_of(other) for other in list(self._courses)}
        signature, _ = signature_of(
            [*self._program.modules.values()], [everyone[optimizer], *everyone.values()]
        )
        parameters = None if course.listed is None else course.listed.still(signature)
        if course.listed is None or parameters is None:
            parameters = self._list(optimizer, course, everyone, signature)
        assert course.listed is not None
        return SeenParameters(course.listed, parameters, self._applied.are_stale(parameters), self._known)

    def _list(
        self,
        optimizer: Optimizer,
        course: Course,
        everyone: Mapping[Optimizer, list[torch.Tensor]],
        signature: int,
    ) -> list[torch.Tensor]:
        """List them, as they are not those that were listed before."""
        held: dict[int, tuple[str, ...]] = {}
        for other, theirs in everyone.items():
            alone = (self._courses[other].name,)
            for parameter in theirs:
                held[id(parameter)] = held[id(parameter)] + alone if id(parameter) in held else alone
        own = {id(each): each for each in everyone[optimizer]}
        others, are_many = dict(own), len(self._courses) > _MANY_OPTIMIZERS
        found: list[tuple[str, torch.Tensor]] = []
        for path, parameter in self._program.parameters():
            if others.pop(id(parameter), None) is not None or not are_many:
                found.append((path, parameter))
        owned = len(found)
        scope = self._program.optimizer_scope(optimizer)
        found += [(f"{scope}/{number}", each) for number, each in enumerate(others.values())]
        del found[_MOST_PARAMETERS:]
        parameters = [parameter for _, parameter in found]
        course.listed = ListedParameters(
            0 if are_many or not self._program.lists_as_all_do() else signature,
            [name for name, _ in found],
            parameters,
            [place < owned for place in range(len(found))],
            [held.get(id(each), ()) for each in parameters],
            [id(each) in own for each in parameters],
            self._known,
        )
        return parameters

    def _update(self, before: _Before, course: Course, is_skipped: bool = False) -> Update:
        optimizer, reached = before.optimizer, self._reached
        seen = before.seen
        names = {} if seen is None else dict(zip(map(id, seen.parameters), seen.listed.names, strict=True))
        held = {id(each) for other in self._courses for each in _parameters_of(other)}
        if reached and seen is not None:
            self._find_declarations(seen, reached)
        return Update(
            before.step,
            course.name,
            course.count,
            before.source,
            course.made,
            course.variable or "",
            course.schedule,
            is_skipped or bool(number_of(getattr(optimizer, "found_inf", None))),
            before.has_closure,
            self._events.since(course.events_before)[-_MOST_EVENTS_TOLD:],
            tuple(
                Group(
                    number_of(group.get("lr")),
                    tuple(names[id(each)] for each in group["params"] if id(each) in names),
                )
                for group in optimizer.param_groups
            ),
            () if seen is None else seen.after(reached),
            self._strays.among((reached or {}).values(), held.union(names), self._program.modules),
            self._modes,
            self._loaders.told(),
            self._graphs.told(before.frame),
        )

    def _find_declarations(self, seen: SeenParameters, reached: Container[int]) -> None:
        """Find out where parameters come from that get no gradient, or whose rows are all the same."""
        unlike = [
            (place, parameter)
            for place, (parameter, differ) in enumerate(zip(seen.parameters, seen.rows_differ, strict=True))
            if id(parameter) not in reached or differ is False
        ]
        if not unlike:
            return
        paths = {
            id(parameter): (root, path)
            for root in self._program.modules.values()
            for path, parameter in root.named_parameters()
        }
        for place, parameter in unlike:
            where = paths.get(id(parameter))
            line = None if where is None else line_of_parameter(*where)
            if line is not None:
                seen.declared[place] = str(line)
            else:
                seen.declared.pop(place, None)

    def _find_unwritten(self, seen: SeenParameters) -> None:
        """Find out which parameters hold what was in memory before them."""
        if not self._registered:
            return
        seen.is_unwritten = [self._registered.is_unwritten(each) for each in seen.parameters]
        for place, (parameter, is_unwritten) in enumerate(
            zip(seen.parameters, seen.is_unwritten, strict=True)
        ):
            if is_unwritten:
                seen.declared[place] = str(self._registered.source_of(parameter))

    def _modes_now(self) -> tuple[Mode, ...]:
        modes = []
        for name, model in self._program.modules.items():
            trains = bool(getattr(model, "training", False))
            inside = model.named_modules() if trains and signature_of([model], [])[1] else ()
            still = [clean_path(f"{name}.{path}") for path, each in inside if not each.training]
            modes.append(Mode(name, trains, tuple(still[:64])))
        return tuple(modes)

    def course_of(self, optimizer: Optimizer) -> Course:
        """How far an optimizer has come."""
        course = self._courses.get(optimizer)
        if course is None:
            name = self._program.optimizer_scope(optimizer).removeprefix("optimizer/")
            begins = LATE_BEGIN if self._made >= _MANY_MADE else 0
            course = self._courses[optimizer] = Course(name, self._events.number, begins)
            course.last_step = self._steps
            self._made += 1
            if course.looks_next:
                self._looking.add(course)
                self._awake.add(course)
                self._looks_next = True
            self._events.wants_lines = self._looks_next
            self._events.listens = self._looks_next or bool(self._awake)
        return course

    def holder_of(self, parameter: torch.Tensor) -> str:
        """The name of the first optimizer that has a parameter, empty if none has."""
        for optimizer, course in self._courses.items():
            if any(each is parameter for each in _parameters_of(optimizer)):
                return course.name
        return ""

    def _belong_to_this_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()
            self._events.belong_to_this_thread()


class _Before(NamedTuple):
    """An update that is about to happen."""

    optimizer: Optimizer
    step: int
    has_closure: bool
    source: Frame | None
    seen: SeenParameters | None
    frame: FrameType


def _parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _decade(rate: Any) -> int | None:
    if not isinstance(rate, float | int) or not math.isfinite(rate):
        return None
    return math.floor(math.log10(abs(rate))) if rate else -1000
