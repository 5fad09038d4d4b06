"""Making way for a profiler that the program runs itself.

Under a dispatch mode PyTorch records every op twice, and ops that the program never called: a program that counts or
times its ops would get other results because it is watched. So the mode leaves when such a profiler starts, until the
end of the run, and does not come while one is active. The native interceptor is not seen by profilers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensortap.engines.torch.interceptor import RunPlan
from tensortap.engines.torch.mode_flags import mode_entered, mode_left
from tensortap.sink.base import notices

__all__ = ["RemovableMode", "makes_way", "making_way"]

log = logging.getLogger("tensortap.engine")

_profiler: Any = torch.autograd.profiler
"""Its names with an underscore have no types."""


class RemovableMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that can be taken away before its block ends."""

    _is_away = False

    def leave(self) -> None:
        """Be called no more, wherever in the stack of modes this is."""
        if self._is_away or all(each is not self for each in _modes()):
            return
        above = []
        while (mode := torch._C._pop_torch_dispatch_stack(None)) is not self:
            above.append(mode)
        for mode in reversed(above):
            torch._C._push_on_torch_dispatch_stack(mode)
        self._is_away = True

    def __enter__(self) -> Self:
        mode_entered()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        if self._is_away:  # PyTorch is about to take it from the stack
            torch._C._push_on_torch_dispatch_stack(self)
            self._is_away = False
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        mode_left()


def makes_way(plan: RunPlan) -> bool:
    """Whether a run is only watched: what was asked for otherwise goes before the program's profiler."""
    stops = plan.watching is not None and plan.watching.stops
    return not (plan.captures or plan.feeds or plan.taps or plan.deadline or plan.traced or stops)


@contextmanager
def making_way(mode: RemovableMode) -> Iterator[None]:
    """Have a mode leave as soon as the program starts a profiler, or at once if one is active."""
    start = _profiler._run_on_profiler_start
    owner = (os.getpid(), threading.get_ident())

    def started() -> None:
        if (os.getpid(), threading.get_ident()) == owner:
            _make_way(mode)
        start()

    if torch._C._autograd._profiler_enabled():
        _make_way(mode)
    _profiler._run_on_profiler_start = started
    try:
        yield
    finally:
        if _profiler._run_on_profiler_start is started:
            _profiler._run_on_profiler_start = start


def _make_way(mode: RemovableMode) -> None:
    try:
        mode.leave()
    except Exception:
        log.warning("tensortap could not make way for the program's profiler", exc_info=True)
        return
    text = (
        "The program runs its own torch.profiler, which would count every op twice under the dispatch mode: ops "
        "are not watched from its start to the end of the run. The native interceptor does without."
    )
    if notices.is_first(text):
        log.warning(text)


def _modes() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(place) for place in range(torch._C._len_torch_dispatch_stack())]
