"""Running JAX's profiler around one run, and never in the way of one that the program runs itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
from jax._src import profiler as jax_profiler

from tensortap.engines.observe.observation import Observation
from tensortap.records import Node
from tensortap.seam.measured import Measured, StepProfile
from tensortap.seam.options import RunOptions, TraceLevel
from tensortap.sink.base import notices

__all__ = ["step_recorded"]

log = logging.getLogger("tensortap.profile")

_one_at_a_time = threading.Lock()


@contextmanager
def step_recorded(
    options: RunOptions, seen: Observation, nodes: Mapping[tuple[int, int], Node]
) -> Iterator[None]:
    """Profile the block if the options ask for it, and leave the profile in the observation.

    Args:
        options: of the run.
        seen: of the run.
        nodes: of the run by label, known when it is over.
    """
    if options.trace_level <= TraceLevel.NO_TRACE:
        yield
        return
    recording = _start(seen)
    try:
        yield
    finally:
        if recording is not None:
            seen.profile = recording.stop(seen, nodes)


def _start(seen: Observation) -> _Recording | None:
    if not _one_at_a_time.acquire(blocking=False):
        _say_once("Another run of this process is being profiled: JAX allows one at a time.")
        return None
    recording = None
    try:
        if jax_profiler._profile_state.profile_session is not None:
            _say_once(
                "The program runs its own jax.profiler, and JAX allows only one: steps are not profiled while it is "
                "active."
            )
        else:
            recording = _Recording()
    except Exception:
        seen.fault("starting JAX's profiler")
    finally:
        if recording is None:
            _one_at_a_time.release()
    return recording


def _say_once(text: str) -> None:
    if notices.is_first(text):
        log.warning(text)


class _Recording:
    """The profiler while it runs."""

    def __init__(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 2  # below that there are no operations
        self._type: Any = jax_profiler._profiler.ProfilerSession
        self._session: Any = self._type(options)
        jax_profiler._profiler.ProfilerSession = self._make_way
        self._start = time.time_ns()

    def _make_way(self, *args: Any, **kwargs: Any) -> Any:
        """The program starts a profiler of its own, in the middle of the run: it goes before ours."""
        self._stop()
        _say_once(
            "The program started its own jax.profiler during a profiled step; that step has no profile."
        )
        return self._type(*args, **kwargs)

    def _stop(self) -> bytes | None:
        """End the recording; its result the first time, None afterwards."""
        session, self._session = self._session, None
        if session is None:
            return None
        jax_profiler._profiler.ProfilerSession = self._type
        try:
            return bytes(session.stop())
        finally:
            _one_at_a_time.release()

    def stop(self, seen: Observation, nodes: Mapping[tuple[int, int], Node]) -> StepProfile | None:
        """End the recording."""
        end = time.time_ns()
        try:
            result = self._stop()
        except Exception:
            seen.fault("stopping JAX's profiler")
            return None
        if result is None:
            return None
        return StepProfile(
            partial(_work_out, result, dict(nodes), int(jax.process_index()), self._start, end)
        )


def _work_out(
    result: bytes, nodes: Mapping[tuple[int, int], Node], rank: int, start: int, end: int
) -> Measured:
    # Imported here: protobuf messages are of no use to runs that nobody profiles.
    from tensortap.engines.jax.profiling.stats import measured

    return measured(result, nodes, rank, start, end)
