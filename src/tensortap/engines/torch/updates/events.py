"""What a program does on its way to an update that no hook of PyTorch tells of: clearing, clipping, scaling."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from tensortap.engines.torch import lines
from tensortap.engines.torch.updates.course import Course
from tensortap.engines.torch.variables import variables_of
from tensortap.records import Event, Frame

__all__ = ["Events", "name_around", "own_line"]

MOST_EVENTS = 256
"""That are remembered; a program that accumulates for longer has told enough."""


def own_line(frame: FrameType | None) -> Frame | None:
    """The innermost of the user's lines that lies in no installed package; else the innermost."""
    innermost: Frame | None = None
    for line in lines.user_lines(frame):
        if not _is_installed(line.file):
            return line
        innermost = innermost or line
    return innermost


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str) -> bool:
    return Frame(file, 0, "").is_installed


def name_around(frame: FrameType | None, thing: Any) -> str:
    """What the program's functions that are being executed call something, in a variable or an attribute of `self`."""
    frame = lines.first_user_frame(frame)
    while frame is not None:
        variables = variables_of(frame)
        owner = variables.get("self")
        for space in (variables, getattr(owner, "__dict__", {}), frame.f_globals):
            for name, value in list(space.items()):
                if value is thing and name != "self":
                    return str(name).lstrip("_")
        frame = lines.first_user_frame(frame.f_back)
    return ""


class _Collector(Protocol):
    """What events ask of whoever wants them."""

    @property
    def steps(self) -> int: ...

    def course_of(self, optimizer: Optimizer) -> Course: ...

    def holder_of(self, parameter: torch.Tensor) -> str: ...

    def skipped(self, optimizer: Optimizer, frame: FrameType) -> None: ...

    def scheduled(self, optimizer: Optimizer, frame: FrameType) -> None: ...


class Events:
    """Remembers what happened last, in one thread, until it is closed.

    Args:
        collector: wants them, and knows the optimizers.

    Attributes:
        wants_lines: whether to note where in the program things happen; it takes some microseconds.
        listens: whether to remember anything: updates that are neither looked at nor compared need not be known.
        number: of events so far.
    """

    def __init__(self, collector: _Collector) -> None:
        self._collector = collector
        self._last: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._thread = threading.get_ident()
        self.wants_lines = True
        self.listens = True
        self.number = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._tell(Optimizer, "zero_grad", lambda args, kwargs: self._of(args[0], "clear"))
        self._tell(nn.Module, "zero_grad", lambda args, kwargs: Event("clear"))
        self._tell(torch.amp.GradScaler, "unscale_", _unscaled(self._of))
        self._tell(LRScheduler, "step", lambda args, kwargs: self._of(args[0].optimizer, "schedule"))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._tell_of_clipping(name)
        self._tell_of_skips()
        self._tell_of_schedules()

    def belong_to_this_thread(self) -> None:
        """Remember what this thread does from now on."""
        self._thread = threading.get_ident()

    def note(self, event: Event, frame: FrameType | None = None) -> None:
        """Something has happened."""
        if self._is_here():
            self.number += 1
            self._last.append(event._replace(source=own_line(frame)) if self.wants_lines else event)

    def since(self, number: int) -> tuple[Event, ...]:
        """What happened after so many events, as far as it is remembered."""
        last = self._last
        wanted = min(self.number - number, len(last))
        return tuple([last[-place] for place in range(wanted, 0, -1)])

    def close(self) -> None:
        """Put PyTorch's own functions back, where ours still are."""
        for owner, name, ours, theirs in reversed(self._replaced):
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)
        self._replaced.clear()

    # ---

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def _of(self, optimizer: Optimizer, what: str) -> Event:
        return Event(what, self._collector.course_of(optimizer).name)

    def _tell(self, owner: Any, name: str, event_of: Callable[[Any, Any], Event | None]) -> None:
        theirs = getattr(owner, name)

        @functools.wraps(theirs)
        def told(*args: Any, **kwargs: Any) -> Any:
            if self.listens and not is_dynamo_compiling():
                self._note_safely(event_of, args, kwargs, sys._getframe(1))
            return theirs(*args, **kwargs)

        self._replace(owner, name, told)

    def _note_safely(
        self, event_of: Callable[[Any, Any], Event | None], args: Any, kwargs: Any, frame: FrameType
    ) -> None:
        try:
            event = event_of(args, kwargs)
            if event is not None:
                self.note(event, frame)
        except Exception:  # ours, and no reason to fail in a program
            return

    def _tell_of_clipping(self, name: str) -> None:
        """Clipping is told with the optimizer whose parameters they are; a norm that is only measured clips nothing."""
        clip_grad: Any = torch.nn.utils.clip_grad
        theirs = getattr(clip_grad, name)

        def event_of(args: Any, kwargs: Any) -> Event | None:
            limit = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
            if not args or limit is None or (isinstance(limit, float) and math.isinf(limit)):
                return None
            parameters = [args[0]] if isinstance(args[0], torch.Tensor) else args[0]
            first = next(iter(parameters), None)
            return Event("clip", "" if first is None else self._collector.holder_of(first))

        @functools.wraps(theirs)
        def told(*args: Any, **kwargs: Any) -> Any:
            if not is_dynamo_compiling():
                if args and hasattr(args[0], "__next__"):  # what can be gone through once only
                    args = (list(args[0]), *args[1:])
                self._note_safely(event_of, args, kwargs, sys._getframe(1))
            return theirs(*args, **kwargs)

        self._replace(clip_grad, name, told)
        self._replace(torch.nn.utils, name, told)

    def _tell_of_skips(self) -> None:
        theirs: Any = torch.amp.GradScaler.step

        @functools.wraps(theirs)
        def step_or_skip(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = self._collector.steps
            result = theirs(scaler, optimizer, *args, **kwargs)
            if before == self._collector.steps and self._is_here():
                self._collector.skipped(optimizer, sys._getframe(1))
            return result

        self._replace(torch.amp.GradScaler, "step", step_or_skip)

    def _tell_of_schedules(self) -> None:
        theirs: Any = LRScheduler.__init__

        @functools.wraps(theirs)
        def made(scheduler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(optimizer, Optimizer):
                self._collector.scheduled(optimizer, sys._getframe(1))
            theirs(scheduler, optimizer, *args, **kwargs)

        self._replace(LRScheduler, "__init__", made)

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        self._replaced.append((owner, name, ours, getattr(owner, name)))
        setattr(owner, name, ours)


def _unscaled(of: Callable[[Optimizer, str], Event]) -> Callable[[Any, Any], Event | None]:
    """A scaler that is switched off unscales nothing."""

    def event_of(args: Any, kwargs: Any) -> Event | None:
        scaler, optimizer = args[0], args[1] if len(args) > 1 else kwargs["optimizer"]
        return of(optimizer, "unscale") if scaler.is_enabled() else None

    return event_of
