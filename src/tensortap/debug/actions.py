"""What a debug wrapper is asked at its three moments, and what it may answer.

The names are those of the original: `On<moment>Request` goes in, `On<moment>Response` comes out, and
`On<moment>Action` lists what can be answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tensortap.seam.options import RunMetadata, RunOptions
from tensortap.watch.options import WatchOptions

__all__ = [
    "OnRunEndRequest",
    "OnRunEndResponse",
    "OnRunStartAction",
    "OnRunStartRequest",
    "OnRunStartResponse",
    "OnSessionInitAction",
    "OnSessionInitRequest",
    "OnSessionInitResponse",
]


class OnSessionInitAction:
    """Answers when a wrapper is made around a session.

    >>> OnSessionInitAction.PROCEED
    'proceed'
    """

    PROCEED = "proceed"
    REMOTE_INSTR_LOOP = "remote_instr_loop"


@dataclass(frozen=True)
class OnSessionInitRequest:
    """A wrapper is made around `session`."""

    session: Any


@dataclass(frozen=True)
class OnSessionInitResponse:
    """What to do then: an `OnSessionInitAction`.

    >>> OnSessionInitResponse(OnSessionInitAction.PROCEED).action
    'proceed'
    """

    action: str


class OnRunStartAction:
    """Answers before a run.

    >>> OnRunStartAction.DEBUG_RUN
    'debug_run'
    """

    DEBUG_RUN = "debug_run"
    PROFILE_RUN = "profile_run"
    NON_DEBUG_RUN = "non_debug_run"
    INVOKE_STEPPER = "invoke_stepper"


@dataclass(frozen=True)
class OnRunStartRequest:
    """A run is about to start.

    Attributes:
        fetches: the caller's, None for a callable made by `make_callable`.
        feed_dict: the caller's, None for a callable.
        run_options: the caller's.
        run_metadata: the caller's.
        run_call_count: number of the run, from 1.
        is_callable_runner: whether a callable made by `make_callable` is called.
    """

    fetches: Any
    feed_dict: Any
    run_options: RunOptions | None
    run_metadata: RunMetadata | None
    run_call_count: int
    is_callable_runner: bool = False


class OnRunStartResponse:
    """What to do in the run.

    Args:
        action: an `OnRunStartAction`.
        debug_urls: list of URLs the records go to.
        debug_ops: one debug op or several.
        node_name_regex_allowlist: as in `WatchOptions`.
        op_type_regex_allowlist: as in `WatchOptions`.
        tensor_dtype_regex_allowlist: as in `WatchOptions`.
        tolerate_debug_op_creation_failures: as in `WatchOptions`.
        watch: all of these at once, instead of them.

    Raises:
        TypeError: `debug_urls` is no list.

    >>> OnRunStartResponse(OnRunStartAction.DEBUG_RUN, ["file:///tmp/run"]).watch.debug_ops
    ['DebugIdentity']
    """

    def __init__(
        self,
        action: str,
        debug_urls: Iterable[str],
        debug_ops: str | Iterable[str] = "DebugIdentity",
        node_name_regex_allowlist: str | None = None,
        op_type_regex_allowlist: str | None = None,
        tensor_dtype_regex_allowlist: str | None = None,
        tolerate_debug_op_creation_failures: bool = False,
        *,
        watch: WatchOptions | None = None,
    ) -> None:
        if not isinstance(debug_urls, list):
            raise TypeError(
                f"debug_urls must be a list of URLs, got {type(debug_urls).__name__}: {debug_urls!r}."
            )
        self.action = action
        self.debug_urls: list[str] = debug_urls
        self.watch = watch or WatchOptions(
            debug_ops,
            node_name_regex_allowlist,
            op_type_regex_allowlist,
            tensor_dtype_regex_allowlist,
            tolerate_debug_op_creation_failures,
        )


@dataclass(frozen=True)
class OnRunEndRequest:
    """A run is over.

    Attributes:
        performed_action: the `OnRunStartAction` that was carried out.
        run_metadata: what the run reported, for debug and profile runs; `nodes` is what it executed.
        tf_error: the op error that ended a debug run, if one did.
        graph: the session's graph.
    """

    performed_action: str
    run_metadata: RunMetadata | None = None
    tf_error: Exception | None = None
    graph: Any = None

    @property
    def client_graph_def(self) -> Any:
        """The graph as a `GraphDef` message, made when it is asked for."""
        return None if self.graph is None else self.graph.as_graph_def()


class OnRunEndResponse:
    """Nothing can be decided after a run; the class shows that `on_run_end` was implemented.

    >>> isinstance(OnRunEndResponse(), OnRunEndResponse)
    True
    """
