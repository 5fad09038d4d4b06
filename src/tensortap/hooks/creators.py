"""Session creators: how a monitored session gets its engine session, first and after every preemption."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tensortap.errors import DeadlineExceededError
from tensortap.hooks.saver import latest_checkpoint
from tensortap.hooks.scaffold import Scaffold, missing_names, run_piece
from tensortap.seam.base import is_session
from tensortap.seam.graph import Graph, current_graph
from tensortap.seam.native import as_engine_session

__all__ = ["ChiefSessionCreator", "SessionCreator", "WorkerSessionCreator", "as_session_creator"]

_log = logging.getLogger("tensortap.hooks")

clock: Callable[[], float] = time.monotonic
sleep: Callable[[float], None] = time.sleep
"""Replaceable, so that tests do not wait."""


class SessionCreator(ABC):
    """Makes engine sessions.

    A creator may have an attribute `graph`, the graph its sessions will run; without it, hooks begin on the
    default graph or on a new one, which is also the default graph while `create_session` runs. What they add there
    is carried over if the session has a graph of its own nevertheless.

    Example:
        >>> class Ready(SessionCreator):
        ...     def __init__(self, session):
        ...         self.session = session
        ...     def create_session(self):
        ...         return self.session
    """

    @abstractmethod
    def create_session(self) -> Any:
        """A session that is ready to run."""


class _SessionSource:
    """Hands out engine sessions: a ready one again and again, or new ones from a factory.

    The first session of a factory is made as soon as the graph is asked for, because only then is it known
    what the hooks begin on; it is handed out by the first `acquire`.
    """

    def __init__(self, session: Any) -> None:
        session = as_engine_session(session)
        self._ready = session if is_session(session) else None
        self._factory = None if is_session(session) else session
        self._unused: Any = None
        self._graph: Graph | None = None
        if self._ready is None and not callable(self._factory):
            raise TypeError(
                f"session must be an engine session or a function that makes one, got {session!r}."
            )

    @property
    def graph(self) -> Graph:
        if self._ready is not None:
            return self._ready.graph  # type: ignore[no-any-return]
        if self._graph is None:
            self._unused = self._make(current_graph() or Graph())
            self._graph = self._unused.graph
        return self._graph

    def acquire(self) -> Any:
        if self._ready is not None:
            # A session that was closed, by a preemption or an earlier monitored session, is opened again.
            reopen = getattr(self._ready, "reopen", None)
            if callable(reopen):
                reopen()
            return self._ready
        graph = self.graph
        session, self._unused = self._unused, None
        if session is None:
            session = self._make(graph)
            if session.graph is not graph:
                raise RuntimeError(
                    "The session factory made a session on another graph than the first one, so what hooks "
                    "added to the graph would be lost. Let sessions use the default graph, or one graph that "
                    "is made outside the factory."
                )
        return session

    def discard_unused(self) -> None:
        """Close the session that was made to know the graph, if nobody has taken it."""
        session, self._unused = self._unused, None
        if session is not None:
            session.close()

    def release(self, session: Any) -> None:
        """Close a session that could not be used; a ready one belongs to the user and stays open."""
        if session is not self._ready:
            session.close()

    def _make(self, graph: Graph) -> Any:
        assert self._factory is not None
        with graph.as_default():
            session = as_engine_session(self._factory())
        if not is_session(session):
            raise TypeError(
                f"The session factory {self._factory!r} returned {session!r}, which is no engine session."
            )
        return session


class ChiefSessionCreator(SessionCreator):
    """Makes sessions that are initialised or restored from a checkpoint.

    In order: finalise the scaffold; restore the checkpoint if there is one, else run `init_op` and `init_fn`;
    run `local_init_op`; check that everything is ready. With a ready session and no checkpoint, recovery
    continues with the state the session has; with a factory, it starts from what the factory makes.

    Args:
        scaffold: pieces of the initialisation.
        master: accepted for callers of the original interface; engine sessions know where they run.
        config: accepted for callers of the original interface.
        checkpoint_dir: restore from the newest checkpoint in this directory, if any.
        checkpoint_filename_with_path: restore from this checkpoint.
        session: an engine session, or a function without arguments that makes one.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> creator = ChiefSessionCreator(session=tt.torch.Session(lambda x: {"loss": x.sum()}))
        >>> with tt.MonitoredSession(creator) as session:
        ...     float(session.run("loss", {"x": torch.ones(3)}))
        3.0
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_filename_with_path: str | os.PathLike[str] | None = None,
        *,
        session: Any,
    ) -> None:
        if checkpoint_dir and checkpoint_filename_with_path:
            raise ValueError(
                f"Give checkpoint_dir ({checkpoint_dir}) or checkpoint_filename_with_path "
                f"({checkpoint_filename_with_path}), not both."
            )
        self._scaffold = scaffold or Scaffold()
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint_file = checkpoint_filename_with_path
        self._source = _SessionSource(session)

    @property
    def graph(self) -> Graph:
        """The graph the sessions run; asking for it makes a factory make its first session."""
        return self._source.graph

    def discard_unused(self) -> None:
        """Close a session that was made to know its graph but is not wanted any more."""
        self._source.discard_unused()

    def create_session(self) -> Any:
        """A session that is initialised or restored, and ready."""
        with self.graph.as_default():
            scaffold = self._scaffold.finalize()
            session = self._source.acquire()
            try:
                self._prepare(scaffold, session)
            except BaseException:
                self._source.release(session)
                raise
            return session

    def _prepare(self, scaffold: Scaffold, session: Any) -> None:
        path = self._checkpoint_file or (self._checkpoint_dir and latest_checkpoint(self._checkpoint_dir))
        if path:
            scaffold.saver.restore(session, path)
        else:
            run_piece(session, scaffold.init_op, scaffold.init_feed_dict)
            if scaffold.init_fn is not None:
                scaffold.init_fn(session)
        missing = _init_locally(scaffold, session)
        if missing:
            origin = f"restoring {path}" if path else "running init_op and init_fn"
            raise RuntimeError(f"The session is not ready after {origin}; missing: {', '.join(missing)}.")


class WorkerSessionCreator(SessionCreator):
    """Makes sessions whose model somebody else, the chief, initialises: waits until it is ready.

    Args:
        scaffold: pieces of the initialisation; only the local and ready parts are used.
        master: accepted for callers of the original interface; engine sessions know where they run.
        config: accepted for callers of the original interface.
        max_wait_secs: how long to wait for the chief.
        session: an engine session, or a function without arguments that makes one.
        poll_secs: how often to look.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> make = lambda: tt.torch.Session(lambda x: {"loss": x.sum()})
        >>> with tt.MonitoredSession(WorkerSessionCreator(session=make)) as session:
        ...     float(session.run("loss", {"x": torch.ones(3)}))
        3.0
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        max_wait_secs: float = 30 * 60,
        *,
        session: Any,
        poll_secs: float = 30,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._max_wait_secs = max_wait_secs
        self._poll_secs = poll_secs
        self._source = _SessionSource(session)

    @property
    def graph(self) -> Graph:
        """The graph the sessions run; asking for it makes a factory make its first session."""
        return self._source.graph

    def discard_unused(self) -> None:
        """Close a session that was made to know its graph but is not wanted any more."""
        self._source.discard_unused()

    def create_session(self) -> Any:
        """A session that is ready.

        Raises:
            DeadlineExceededError: it was not ready in time.
        """
        with self.graph.as_default():
            scaffold = self._scaffold.finalize()
            deadline = clock() + self._max_wait_secs
            while True:
                session = self._source.acquire()
                try:
                    missing = _init_locally(scaffold, session)
                except BaseException:
                    self._source.release(session)
                    raise
                if not missing:
                    return session
                self._source.release(session)
                remaining = deadline - clock()
                if remaining < self._poll_secs:
                    raise DeadlineExceededError(
                        None,
                        f"The session was not ready after waiting {self._max_wait_secs} s; missing: "
                        f"{', '.join(missing)}.",
                    )
                _log.info("Waiting for the chief to initialise: %s", ", ".join(missing))
                sleep(self._poll_secs)


def _init_locally(scaffold: Scaffold, session: Any) -> list[str]:
    """Run the local initialisation if the session is ready for it; what is missing afterwards."""
    missing = missing_names(session, scaffold.ready_for_local_init_op)
    if missing:
        return missing
    run_piece(session, scaffold.local_init_op, scaffold.local_init_feed_dict)
    return missing_names(session, scaffold.ready_op)


def as_session_creator(candidate: Any) -> Any:
    """A session creator for whatever a user may pass as one.

    Args:
        candidate: a creator, an engine session, or a function without arguments that makes a session.
    """
    wanted = (
        "Pass an engine session such as tensortap.torch.Session(step), a function that makes one, or a "
        "SessionCreator."
    )
    if candidate is None:
        raise TypeError(f"A monitored session needs a session to monitor. {wanted}")
    if isinstance(candidate, SessionCreator):
        return candidate
    if isinstance(candidate, type) and issubclass(candidate, SessionCreator):
        raise TypeError(f"{candidate.__name__} is a class; pass an instance of it.")
    if callable(getattr(candidate, "create_session", None)) and not isinstance(candidate, type):
        return candidate
    if callable(getattr(candidate, "run_step_fn", None)):
        raise TypeError(
            f"{type(candidate).__name__} is a monitored session already; pass its engine session."
        )
    if is_session(as_engine_session(candidate)) or callable(candidate):
        return ChiefSessionCreator(session=candidate)
    raise TypeError(f"{candidate!r} is neither a session creator nor a session. {wanted}")
