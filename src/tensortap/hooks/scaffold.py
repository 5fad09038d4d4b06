"""Scaffold: the pieces that bring a new session to a usable state, and save it.

A piece that does something is either a function of the session, `piece(session)`, or fetches that are run
with `session.run(piece, feed_dict)`. A piece that checks readiness yields the names of what is missing; an
empty result or None means ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensortap.hooks.saver import Saver
from tensortap.seam.graph import GraphKeys, get_default_graph

__all__ = ["Scaffold"]

_PIECES = (
    "init_op",
    "init_feed_dict",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "local_init_feed_dict",
    "summary_op",
    "saver",
)


def nothing_to_do(session: Any) -> None:
    """Default initialisation: engines hand over sessions that are initialised."""


def always_ready(session: Any) -> None:
    """Default readiness check: nothing is ever missing."""


class Scaffold:
    """Pieces needed to initialise, check, summarise and save a session.

    A piece that is given wins. A missing one is taken from the matching collection of the graph when the
    scaffold is finalised, or else made and stored there.

    Args:
        init_op: initialises a session that is not restored from a checkpoint.
        init_feed_dict: feeds for `init_op`.
        init_fn: called as `init_fn(scaffold, session)` after `init_op`.
        ready_op: what is missing before the session can be used.
        ready_for_local_init_op: what is missing before `local_init_op` can run.
        local_init_op: initialises what no checkpoint holds; run after a restore too.
        local_init_feed_dict: feeds for `local_init_op`.
        summary_op: fetches for `SummarySaverHook`.
        saver: a `Saver`.
        copy_from_scaffold: take all pieces from this scaffold where none is given here.

    >>> loaded = []
    >>> scaffold = Scaffold(init_fn=lambda scaffold, session: loaded.append(session))
    >>> from tensortap.seam.graph import Graph
    >>> with Graph().as_default() as graph:
    ...     scaffold = scaffold.finalize()
    >>> graph.finalized, type(scaffold.saver).__name__
    (True, 'Saver')
    """

    init_op: Any
    init_feed_dict: Mapping[Any, Any] | None
    ready_op: Any
    ready_for_local_init_op: Any
    local_init_op: Any
    local_init_feed_dict: Mapping[Any, Any] | None
    summary_op: Any
    saver: Any

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Any], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Any = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        given = {
            "init_op": init_op,
            "init_feed_dict": init_feed_dict,
            "ready_op": ready_op,
            "ready_for_local_init_op": ready_for_local_init_op,
            "local_init_op": local_init_op,
            "local_init_feed_dict": local_init_feed_dict,
            "summary_op": summary_op,
            "saver": saver,
        }
        self._user_init_fn = init_fn
        if copy_from_scaffold is not None:
            if not isinstance(copy_from_scaffold, Scaffold):
                raise TypeError(
                    f"copy_from_scaffold must be a Scaffold, got {type(copy_from_scaffold).__name__}."
                )
            given = {k: getattr(copy_from_scaffold, k) if v is None else v for k, v in given.items()}
            if init_fn is None:
                self._user_init_fn = copy_from_scaffold._user_init_fn
        for piece in _PIECES:
            setattr(self, piece, given[piece])

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        """The given `init_fn` as a function of the session alone."""
        function = self._user_init_fn
        return None if function is None else lambda session: function(self, session)

    def finalize(self) -> Scaffold:
        """Complete the missing pieces and finalise the default graph; may be called again."""
        for piece, key, make in (
            ("init_op", GraphKeys.INIT_OP, lambda: nothing_to_do),
            ("ready_op", GraphKeys.READY_OP, lambda: always_ready),
            ("ready_for_local_init_op", GraphKeys.READY_FOR_LOCAL_INIT_OP, lambda: always_ready),
            ("local_init_op", GraphKeys.LOCAL_INIT_OP, lambda: nothing_to_do),
            ("summary_op", GraphKeys.SUMMARY_OP, lambda: None),
            ("saver", GraphKeys.SAVERS, Saver),
        ):
            if getattr(self, piece) is None:
                setattr(self, piece, self.get_or_default(piece, key, make))
        get_default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """The single item of a collection of the default graph, or a new one stored there.

        Raises:
            RuntimeError: the collection holds more than one item.
        """
        graph = get_default_graph()
        items = graph.get_collection(collection_key)
        if len(items) > 1:
            raise RuntimeError(
                f"The collection {collection_key!r} holds {len(items)} items, so there is no telling which "
                f"one to use. Pass the right one as {arg_name}=... to the Scaffold."
            )
        if items:
            return items[0]
        made = default_constructor()
        if made is not None:
            graph.add_to_collection(collection_key, made)
        return made


def run_piece(session: Any, piece: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
    """Carry out one piece of a scaffold."""
    if piece is None:
        return None
    return piece(session) if callable(piece) else session.run(piece, feed_dict)


def missing_names(session: Any, ready_piece: Any) -> list[str]:
    """What a readiness check reports as missing; empty when ready."""
    result = run_piece(session, ready_piece)
    if result is None:
        return []
    items = [result] if isinstance(result, (str, bytes)) else np.asarray(result).ravel().tolist()
    return [
        each.decode() if isinstance(each, bytes) else str(each) for each in items if each not in ("", b"")
    ]
