"""Running PyTorch's profiler around one run, and never in the way of one that the program runs itself.

PyTorch allows one profiler in a process. A second one started at the wrong moment, while the program's own warms up,
crashes the process: so ours starts only if no other is to be seen, and stops at once if the program starts one in
the middle of the run.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from tensortap.engines.torch import devices
from tensortap.engines.torch.interceptor import Observation
from tensortap.engines.torch.program import Program
from tensortap.records import Node
from tensortap.seam.measured import Measured, StepProfile
from tensortap.seam.options import RunOptions, TraceLevel
from tensortap.sink.base import notices

__all__ = ["has_compiled_modules", "step_recorded"]

log = logging.getLogger("tensortap.profile")

_torch: Any = torch.autograd.profiler
"""Its names with an underscore have no types."""

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_QUIET = "99"  # above every level: PyTorch's tracing library says on standard error that it starts and stops
_one_at_a_time = threading.Lock()


@contextmanager
def step_recorded(options: RunOptions, seen: Observation) -> Iterator[None]:
    """Profile the block if the options ask for it, and leave the profile in the observation.

    Whatever goes wrong here is no reason to lose the step: then there is no profile, and the log says why.
    """
    if options.trace_level <= TraceLevel.NO_TRACE:
        yield
        return
    recording = _start(options, seen)
    try:
        yield
    finally:
        if recording is not None:
            seen.profile = recording.stop(seen)


def has_compiled_modules(program: Program) -> bool:
    """Whether a module of the program is compiled: such a program is measured as it is, not op by op."""
    return "torch._dynamo" in sys.modules and any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None
        for module in program.modules.values()
        for each in module.modules()
    )


def _start(options: RunOptions, seen: Observation) -> _Recording | None:
    if not torch.profiler.kineto_available():
        _say_once("This build of PyTorch has no profiler (Kineto): steps are not profiled.")
        return None
    if not _one_at_a_time.acquire(blocking=False):
        _say_once("Another run of this process is being profiled: PyTorch allows one at a time.")
        return None
    recording = None
    try:
        if _program_profiles_itself():
            _say_once(
                "The program runs its own torch.profiler, and PyTorch allows only one: steps are not profiled "
                "while it is active."
            )
        else:
            recording = _Recording(options)
    except Exception:
        seen.fault("starting PyTorch's profiler")
    finally:
        if recording is None:
            _one_at_a_time.release()
    return recording


def _say_once(text: str) -> None:
    if notices.is_first(text):
        log.warning(text)


def _program_profiles_itself() -> bool:
    """Whether another profiler records, or is warming up to do so, anywhere in this process."""
    if torch._C._autograd._profiler_enabled() or _torch._is_profiler_enabled:
        return True
    if "ProfilerStep" not in _torch.KinetoStepTracker._step_dict:
        return False
    # A profiler with a schedule exists. What it is about, only the object itself knows.
    return any(
        issubclass(type(each), torch.profiler.profile) and _is_under_way(each) for each in gc.get_objects()
    )


def _is_under_way(profiler: Any) -> bool:
    inner = getattr(profiler, "profiler", None)
    if inner is None:
        return False
    warms_up = getattr(profiler, "current_action", None) is torch.profiler.ProfilerAction.WARMUP
    return warms_up or getattr(inner, "kineto_results", None) is None


class _Recording:
    """The profiler while it runs."""

    def __init__(self, options: RunOptions) -> None:
        self._memory = options.trace_memory
        self._thread = threading.current_thread().name
        self._process = os.getpid()
        self._stopped = False
        self._profiler = _torch.profile(
            use_kineto=True,
            use_device=_accelerator() if options.trace_level >= TraceLevel.HARDWARE_TRACE else None,
            profile_memory=options.trace_memory,
        )
        with _quiet():
            self._profiler.__enter__()
        self._prepare = _torch._prepare_profiler
        _torch._prepare_profiler = self._make_way
        self._start = time.time_ns()

    def _make_way(self, *args: Any, **kwargs: Any) -> Any:
        """The program starts a profiler of its own, in the middle of the run: it goes before ours."""
        if os.getpid() != self._process:  # a child of the program, which has nothing to do with us
            return self._prepare(*args, **kwargs)
        self._stop()
        _say_once(
            "The program started its own torch.profiler during a profiled step; that step has no profile."
        )
        return self._prepare(*args, **kwargs)

    def _stop(self) -> Any:
        """End the recording; its result the first time, None afterwards."""
        if self._stopped:
            return None
        self._stopped = True
        _torch._prepare_profiler = self._prepare
        try:
            self._profiler.__exit__(None, None, None)
            return self._profiler.kineto_results
        finally:
            _one_at_a_time.release()

    def stop(self, seen: Observation) -> StepProfile | None:
        """End the recording. The observation of the run's nodes ends a little later, and is read when it has."""
        end = time.time_ns()
        try:
            result = self._stop()
        except Exception:
            seen.fault("stopping PyTorch's profiler")
            return None
        if result is None:
            return None
        # Bound here: the rank of a process may be gone when somebody asks.
        return StepProfile(
            partial(
                _work_out,
                result,
                seen.nodes,
                seen.executions,
                memory=self._memory,
                thread=self._thread,
                rank=devices.rank(),
                start=self._start,
                end=end,
            )
        )


def _work_out(result: Any, nodes: list[Node], executions: bytearray, **facts: Any) -> Measured:
    # Imported here: protobuf messages are of no use to runs that nobody profiles.
    from tensortap.engines.torch.profiling.stats import measured

    return measured(result, nodes, executions, **facts)


def _accelerator() -> str | None:
    """The kind of accelerator, if PyTorch can profile it."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return None
    is_added = found.type == torch._C._get_privateuse1_backend_name()
    activity = getattr(
        torch.profiler.ProfilerActivity, "PrivateUse1" if is_added else found.type.upper(), None
    )
    return found.type if activity in torch.profiler.supported_activities() else None  # type: ignore[no-untyped-call]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch's tracing library, which reads this once, from writing to the user's terminal in every step."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _QUIET
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]
