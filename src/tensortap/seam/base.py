"""The engine seam: what every engine's session offers to hooks, wrappers and monitored sessions.

An engine adapts a *step* (ordinary PyTorch code, a jitted JAX function, a TensorFlow graph) to a `Session`.
Everything above this file speaks to sessions only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from tensortap.records import Device, Update
from tensortap.seam.graph import Graph
from tensortap.seam.options import RunMetadata, RunOptions

__all__ = [
    "Collector",
    "Engine",
    "Follower",
    "Guard",
    "GuardedSession",
    "NonFinite",
    "Session",
    "StatefulSession",
    "UpdatingSession",
    "default_session",
    "engine_session_of",
    "get_default_session",
    "guard_of",
    "is_session",
]


@runtime_checkable
class Session(Protocol):
    """Executes runs of one graph.

    `run` contract, the same on all engines:
    - `fetches` is None (the step's own return value), or a nested structure of keys of what the step
      returns and tensor names; the result has the same structure, tensors as NumPy arrays;
    - None as a leaf of such a structure is the step's own return value too: a monitored session merges the
      caller's None with what its hooks fetch, and the step must still run once;
    - fetches that are all state (parameters, buffers, the global step) are read without running the step;
    - `feed_dict` maps step parameters or tensor names to values for this run;
    - `options` and `run_metadata` are filled and honoured as their classes say;
    - an unknown name raises `UnknownTensorError`, before the step runs if the graph is known.
    """

    @property
    def graph(self) -> Graph:
        """What the runs execute."""

    @property
    def graph_def(self) -> Any:
        """The graph as a `GraphDef` message."""

    @property
    def global_step(self) -> int:
        """Completed runs, plus the value counting started from."""

    @property
    def sess_str(self) -> str:
        """Which runtime the session speaks to; empty for this process."""

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Execute one run."""

    def make_callable(
        self, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function that runs `fetches`, taking the values of `feed_list` as positional arguments."""

    def list_devices(self) -> list[Device]:
        """The devices of this session."""

    def close(self) -> None:
        """Release everything; harmless when called again."""

    def reopen(self) -> None:
        """Accept runs again, as a monitored session wants when it recovers."""

    def as_default(self) -> AbstractContextManager[Any]:
        """Make this the default session of the thread, without closing it on exit."""


def is_session(candidate: Any) -> bool:
    """Whether this is the session of an engine: it runs one of our graphs.

    Not by the protocol: asking for it would build a graph_def. And many things have a method `run` and a graph of their
    own kind.
    """
    return (
        not isinstance(candidate, type)
        and callable(getattr(candidate, "run", None))
        and isinstance(getattr(candidate, "graph", None), Graph)
    )


@runtime_checkable
class StatefulSession(Protocol):
    """A session whose state (weights, optimizer, step, random generators) can go to a file and back."""

    def save_state(self, path: Path) -> None:
        """Write the whole state to one file."""

    def load_state(self, path: Path) -> None:
        """Put the state of a file in place."""

    def non_finite_state(self) -> Iterable[NonFinite]:
        """The parts of the state that hold NaN or infinities, which savers ask for before they write."""


class Collector(Protocol):
    """Looks at updates until it is closed."""

    def close(self) -> None:
        """Look at nothing more; harmless when called again."""


@runtime_checkable
class UpdatingSession(Protocol):
    """A session that can tell what optimizers do to parameters, for checks."""

    def collect_updates(self, write: Callable[[Update], None]) -> Collector:
        """Have `write` called with the updates that are looked at from now on: the first, then ever fewer."""


class Guard(Protocol):
    """Looks at what runs leave behind that nobody watches, at next to no cost: whether an update was bad."""

    def begin(self) -> None:
        """A run begins that is not watched. What is bad already is no news; it came out of runs that were."""

    def end(self) -> str | None:
        """It is over; what is bad in it, in words (`the gradient of model/fc/weight`), None if nothing is."""


@runtime_checkable
class GuardedSession(Protocol):
    """A session whose runs need not all be watched, because a guard looks at the others: a budget of time needs it."""

    def guard(self) -> Guard:
        """A guard for runs of this session, one at a time."""


def guard_of(session: Any) -> Guard:
    """The guard of an engine's session.

    Raises:
        NotImplementedError: the engine has none, so that runs which are not watched would go unseen.
    """
    if isinstance(session, GuardedSession):
        return session.guard()
    raise NotImplementedError(
        "A budget of time needs an engine that guards the runs between those that are watched, and the session "
        f"{type(session).__name__} has no guard(). Watch all runs, or every so many: Retention(every=10)."
    )


class NonFinite(NamedTuple):
    """A part of a session's state that holds NaN or infinities.

    Attributes:
        name: its path, such as `model/fc/weight`.
        kind: what it is.
        nan: whether it holds NaN; otherwise it holds infinities.
        trained: whether training changes it on purpose; False for a frozen parameter.
    """

    name: str
    kind: Literal["parameter", "buffer", "optimizer state"]
    nan: bool
    trained: bool = True


class Follower(Protocol):
    """Follows a program that nobody changed, for `tensortap run`: finds its models and steps, makes runs of them."""

    def end(self, error: BaseException | None = None) -> None:
        """The program is over, or about to end by an exception; what comes after is not watched."""


class Engine(Protocol):
    """What commands ask of an engine; see `tensortap.engines.registry`."""

    def follow(self, watch: Any) -> Follower:
        """Follow the program of this process from now on.

        Args:
            watch: a `tensortap.launch.watch.ScriptWatch`, which says what is wanted and hears what happens.
        """

    def tell_if_serving(self, tell: Callable[[], None]) -> None:
        """In a process that another one has started: call `tell` if it turns out to load data for that one."""

    def listen_to_children(
        self, note: Callable[[str], None], serve_data: Callable[[Iterable[int]], None]
    ) -> None:
        """In every child that this process forks from now on, call `note` when it begins to train, with the evidence:
        `made` a module or an optimizer, called a `model`, or `trained`. And have the numbers of processes told that
        only load data."""

    def world_size(self) -> int:
        """How many ranks the job of this process has, as far as the framework knows."""

    def builder(self) -> ModuleType | None:
        """What builds the native part ahead of time (`SOURCE`, `find_built`, `ensure_built`, `library_path`,
        `remove_all`); None if there is none."""

    def train_once(self, root: str | Path) -> None:
        """Train a small model for one step and record the health of everything in a new session directory."""


def engine_session_of(session: Any) -> Any:
    """The engine session behind a monitored session, None if that has none at the moment; others are their own.

    >>> engine_session_of("a session")
    'a session'
    """
    ask = getattr(type(session), "engine_session", None)
    return session.engine_session() if callable(ask) else session


_thread = threading.local()


@contextmanager
def default_session(session: Any) -> Iterator[Any]:
    """Make `session` the default of this thread inside the block."""
    stack: list[Any] = _thread.__dict__.setdefault("sessions", [])
    stack.append(session)
    try:
        yield session
    finally:
        stack.pop()


def get_default_session() -> Any:
    """The innermost default session of this thread, or None.

    >>> get_default_session() is None
    True
    """
    stack: list[Any] = _thread.__dict__.setdefault("sessions", [])
    return stack[-1] if stack else None
