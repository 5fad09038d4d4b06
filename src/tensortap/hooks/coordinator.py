"""Coordinator: how the threads around a session agree to stop, and who hears of their errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tensortap.errors import OutOfRangeError

__all__ = ["Coordinator", "LooperThread"]

_log = logging.getLogger("tensortap.hooks")

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

_POLL_SECS = 0.02
"""How often `join` looks for threads that finished by themselves; a requested stop wakes it at once."""


class Coordinator:
    """Lets a group of threads stop together and brings the first of their errors to the one who joins.

    Args:
        clean_stop_exception_types: exceptions that mean "finished", not "failed"; `OutOfRangeError` by
            default.

    >>> coord = Coordinator()
    >>> def work():
    ...     with coord.stop_on_exception():
    ...         raise ValueError("no more paper")
    >>> thread = threading.Thread(target=work)
    >>> thread.start()
    >>> coord.join([thread])
    Traceback (most recent call last):
    ValueError: no more paper
    """

    def __init__(self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None) -> None:
        clean = (OutOfRangeError,) if clean_stop_exception_types is None else clean_stop_exception_types
        self._clean_stop_types = tuple(clean)
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._error: BaseException | None = None
        self._joined = False
        self._threads: list[threading.Thread] = []

    def request_stop(self, ex: BaseException | ExcInfo | None = None) -> None:
        """Ask all threads to stop.

        Args:
            ex: why, if something failed: an exception or the triple of `sys.exc_info()`. The first one is
                kept for `join`; later ones are dropped.

        Raises:
            BaseException: `ex` itself if the threads were joined already, for nobody else would report it.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        if isinstance(error, self._clean_stop_types):
            error = None
        with self._lock:
            if self._joined and error is not None:
                raise error
            if not self._stop_event.is_set():
                self._error = error
                if error is not None:
                    _log.info("A thread asked to stop because of %r", error)
                self._stop_event.set()

    def clear_stop(self) -> None:
        """Start over: no stop, no error, not joined."""
        with self._lock:
            self._joined = False
            self._error = None
            self._stop_event.clear()

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_event.is_set()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is requested, at most `timeout` seconds; whether it was."""
        return self._stop_event.wait(timeout)

    @contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Report an exception of the block to the coordinator instead of raising it."""
        try:
            yield
        except Exception as error:
            self.request_stop(error)
        except BaseException as error:
            # Ctrl-C and exit requests stop the others but are not ours to swallow.
            self.request_stop(error)
            raise

    def register_thread(self, thread: threading.Thread) -> None:
        """Have `join` wait for this thread too."""
        with self._lock:
            self._threads.append(thread)

    @property
    def joined(self) -> bool:
        """Whether `join` has completed since the last `clear_stop`."""
        return self._joined

    def raise_requested_exception(self) -> None:
        """Raise the error that was reported, if any."""
        with self._lock:
            if self._error is not None:
                raise self._error

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until all threads have finished, or until a stop is requested and the grace period is over.

        Args:
            threads: to wait for, besides the registered ones.
            stop_grace_period_secs: how long threads may take to finish after the stop was requested.
            ignore_live_threads: only log threads that are still alive then.

        Raises:
            BaseException: the first error that a thread reported.
            RuntimeError: threads are still alive after the grace period.
        """
        with self._lock:
            awaited = list(dict.fromkeys([*self._threads, *(threads or ())]))
        while any(thread.is_alive() for thread in awaited) and not self.wait_for_stop(_POLL_SECS):
            pass
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in awaited:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        stragglers = " ".join(thread.name for thread in awaited if thread.is_alive())
        with self._lock:
            self._joined = True
            self._threads = []
            if self._error is not None:
                raise self._error
            if stragglers and not ignore_live_threads:
                raise RuntimeError(
                    f"These threads did not stop within the grace period of {stop_grace_period_secs} s: "
                    f"{stragglers}."
                )
            if stragglers:
                _log.info("These threads are still running after the grace period: %s", stragglers)


class LooperThread(threading.Thread):
    """A thread that calls a function again and again until its coordinator says stop.

    An exception of the function is reported to the coordinator and ends the loop.

    Args:
        coord: tells when to stop, and hears of errors.
        timer_interval_secs: seconds between the starts of two calls; None calls back to back.
        target: the function; without one, override `run_loop`.
        args: positional arguments of `target`.
        kwargs: keyword arguments of `target`.

    >>> coord, calls = Coordinator(), []
    >>> def work():
    ...     calls.append(len(calls))
    ...     if len(calls) == 3:
    ...         coord.request_stop()
    >>> coord.join([LooperThread.loop(coord, None, work)])
    >>> calls
    [0, 1, 2]
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise ValueError(f"coord must be a Coordinator, got {type(coord).__name__}.")
        super().__init__(daemon=True)
        self._coord = coord
        self._interval = timer_interval_secs
        self._work = target
        self._work_args = tuple(args or ())
        self._work_kwargs = dict(kwargs or {})
        coord.register_thread(self)

    @classmethod
    def loop(
        cls,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Make a looper thread and start it."""
        looper = cls(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """The body of the thread."""
        with self._coord.stop_on_exception():
            self.start_loop()
            next_call = time.monotonic()
            while not self._coord.wait_for_stop(max(0.0, next_call - time.monotonic())):
                self.run_loop()
                # A call that took longer than the interval is followed by the next one at once.
                next_call = (
                    time.monotonic()
                    if self._interval is None
                    else max(next_call + self._interval, time.monotonic())
                )
            self.stop_loop()

    def start_loop(self) -> None:
        """Called in the thread before the first call."""

    def stop_loop(self) -> None:
        """Called in the thread after the last call."""

    def run_loop(self) -> None:
        """One round: calls the target."""
        if self._work is not None:
            self._work(*self._work_args, **self._work_kwargs)
