"""How many bytes of values may be written, per run and per session.

Over the limit, records are dropped and counted with the reason, and training goes on. Bytes are those of the
values, and of the graphs as they are stored. A request of zero bytes always passes; others pass while what is used
plus the request stays *below* the limit.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

__all__ = [
    "DEFAULT_LIMIT_BYTES",
    "LIMIT_VARIABLES",
    "Budget",
    "Meter",
    "as_budget",
    "limit_from_environment",
    "process_meter",
]

DEFAULT_LIMIT_BYTES = 100 << 30
"""100 GiB, as the original debugger."""

LIMIT_VARIABLES = ("TENSORTAP_DISK_BYTES_LIMIT", "TFDBG_DISK_BYTES_LIMIT")
"""Environment variables that change the default; the first one that is set decides."""

OVER_RUN_BUDGET = "run budget"
OVER_SESSION_BUDGET = "session budget"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of what a session writes.

    Attributes:
        bytes_per_run: of each run; None sets no limit of its own.
        bytes_per_session: of all runs together; None takes TENSORTAP_DISK_BYTES_LIMIT or
            TFDBG_DISK_BYTES_LIMIT from the environment, or 100 GiB.
        time: time of the program with us over its time without, as in 1.1: so few runs are watched, and the others only
            guarded. None watches all of them.

    >>> Budget(bytes_per_run=10 << 20).bytes_per_session is None
    True
    """

    bytes_per_run: int | None = None
    bytes_per_session: int | None = None
    time: float | None = None

    def __post_init__(self) -> None:
        for name in ("bytes_per_run", "bytes_per_session"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise ValueError(f"{name} must be a positive number of bytes, got {value!r}.")
        if self.time is not None and not 1 < self.time < float("inf"):
            raise ValueError(f"A budget of time is a ratio above 1, as in 1.1; got {self.time!r}.")

    @property
    def session_limit(self) -> int:
        """The limit in force for all runs together."""
        return self.bytes_per_session or limit_from_environment()


_MOST_RATIO = 100
"""A larger number was not meant as a ratio."""


def as_budget(given: Any) -> Budget | None:
    """A budget as it was given to a hook: whole, or as a number for that of time alone.

    Raises:
        TypeError: neither.

    >>> as_budget(1.1)
    Budget(bytes_per_run=None, bytes_per_session=None, time=1.1)
    """
    if given is None or isinstance(given, Budget):
        return given
    if isinstance(given, float | int) and not isinstance(given, bool) and given < _MOST_RATIO:
        return Budget(time=given)
    raise TypeError(f"budget= takes a tensortap Budget(...), or a ratio of time such as 1.1, got {given!r}.")


def limit_from_environment(default: int = DEFAULT_LIMIT_BYTES) -> int:
    """The limit that the environment sets, or the default.

    Raises:
        ValueError: the variable holds no positive number; the message names it.
    """
    for variable in LIMIT_VARIABLES:
        text = os.environ.get(variable, "").strip()
        if text:
            if not text.isdecimal() or int(text) <= 0:
                raise ValueError(f"{variable}={text!r} must be a positive number of bytes.")
            return int(text)
    return default


class Meter:
    """Counts bytes against a session's budget. Safe to use from several threads.

    >>> meter = Meter(Budget(bytes_per_session=10))
    >>> run = meter.start_run()
    >>> run.refusal(6), run.refusal(4), run.refusal(0)
    (None, 'session budget', None)
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()
        self.limit = self.budget.session_limit
        self.used = 0
        self.shared = 0
        """Bytes of graphs, which belong to no run."""
        self._resets = 0
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.used = self.shared = 0
            self._resets += 1

    def refusal_of_graph(self, nbytes: int) -> str | None:
        """Why a graph of this size may not be stored; None, and it is counted, if it may."""
        with self._lock:
            if self.used + self.shared + nbytes >= self.limit:
                return OVER_SESSION_BUDGET
            self.shared += nbytes
        return None

    def start_run(self) -> RunMeter:
        """A meter for the records of one run, that counts for the session too."""
        return RunMeter(self)


class RunMeter:
    """Counts the bytes of one run, and those of its session."""

    def __init__(self, session: Meter) -> None:
        self.session = session
        self.used = 0
        self._resets = 0
        self._in_session = 0

    def refusal(self, nbytes: int) -> str | None:
        """Why a value of this size may not be written; None, and it is counted, if it may."""
        if nbytes == 0:
            return None
        session = self.session
        with session._lock:
            per_run = session.budget.bytes_per_run
            if per_run is not None and self.used + nbytes >= per_run:
                return OVER_RUN_BUDGET
            if session.used + session.shared + nbytes >= session.limit:
                return OVER_SESSION_BUDGET
            self._count(nbytes)
        return None

    def refund(self, nbytes: int | None = None) -> None:
        """Give back what was granted and then not written; without a number, all that is left of the run."""
        with self.session._lock:
            self._count(-self.used if nbytes is None else -nbytes)

    def _count(self, nbytes: int) -> None:
        session = self.session
        if self._resets != session._resets:  # what was counted before is forgotten already
            self._resets, self._in_session = session._resets, 0
        change = max(nbytes, -self._in_session)
        self.used += nbytes
        self._in_session += change
        session.used += change

    def explain(self, reason: str) -> str:
        """A sentence for the first record that is refused for this reason."""
        budget = self.session.budget
        if reason == OVER_RUN_BUDGET:
            return f"a run may write {budget.bytes_per_run} bytes (Budget.bytes_per_run)"
        where = "Budget.bytes_per_session" if budget.bytes_per_session else " or ".join(LIMIT_VARIABLES)
        return f"a session may write {self.session.limit} bytes ({where})"


_process_meter: Meter | None = None


def process_meter() -> Meter:
    """The meter of everything that is written outside a debug session or hook."""
    global _process_meter
    if _process_meter is None:
        _process_meter = Meter()
    return _process_meter
