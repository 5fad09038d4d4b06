"""Sessions that a framework has itself, and monitored sessions of its own that call our hooks.

An engine of such a framework has a module `hosting` that adapts both. It is loaded when something of the framework's
first meets something of ours: this is where the parts above a seam reach an engine that nobody has imported.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Protocol

from tensortap.frameworks import FRAMEWORKS
from tensortap.seam.base import is_session
from tensortap.seam.graph import Graph, current_graph

__all__ = ["Hosting", "as_engine_session", "graph_of_creator", "host_of"]


class Hosting(Protocol):
    """What `tensortap.engines.NAME.hosting` offers."""

    def session_of(self, candidate: Any) -> Any:
        """An engine session around a session of the framework's; None if it is none."""

    def default_graph(self) -> Graph:
        """What stands for the default graph of the framework."""

    def call(self, hook: Any, method: Any, moment: str, args: tuple[Any, ...]) -> Any:
        """Call one moment of a hook of ours that a monitored session of the framework's has called."""


def as_engine_session(candidate: Any) -> Any:
    """An engine session for a session of a framework's own; anything else as it is.

    >>> as_engine_session("a session")
    'a session'
    """
    hosting = None if is_session(candidate) or isinstance(candidate, type) else _hosting_of(candidate)
    found = None if hosting is None else hosting.session_of(candidate)
    return candidate if found is None else found


def graph_of_creator(creator: Any) -> Graph | None:
    """The graph of the sessions that a session creator of a framework's own will make; None for others."""
    hosting = _hosting_of(creator)
    return None if hosting is None else hosting.default_graph()


def host_of(moment: str, args: tuple[Any, ...]) -> Hosting | None:
    """Who adapts a call of one of our hooks; None if it comes from a monitored session of ours.

    Args:
        moment: which method was called.
        args: what with.
    """
    if args:
        return None if is_session(args[0]) else _hosting_of(args[0])
    if current_graph() is not None:
        return None
    found = [each for each in FRAMEWORKS if each.has_sessions and each.module in sys.modules]
    return _load(found[0].name) if found else None


def _hosting_of(candidate: Any) -> Hosting | None:
    roots = {cls.__module__.partition(".")[0] for cls in type(candidate).__mro__}
    if "tensortap" in roots:
        return None
    found = [each for each in FRAMEWORKS if each.has_sessions and each.module in roots]
    return _load(found[0].name) if found else None


def _load(name: str) -> Hosting:
    hosting: Any = import_module(f"tensortap.engines.{name}.hosting")
    return hosting  # type: ignore[no-any-return]
