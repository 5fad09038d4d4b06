"""What a hook asks of a run, what it gets back, and how the requests of all hooks become one run.

The caller's request and every hook's request are executed together, so everyone sees the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensortap.records import split_tensor_name, tensor_name
from tensortap.seam.options import RunMetadata, RunOptions

__all__ = ["SessionRunArgs", "SessionRunContext", "SessionRunValues"]


class SessionRunArgs(NamedTuple):
    """What a hook adds to a run; returned from `SessionRunHook.before_run`.

    Attributes:
        fetches: a single key or tensor name, or a list, tuple or dict of them, nested to any depth; None
            adds nothing to the fetches.
        feed_dict: values to feed in this run, in addition to the caller's.
        options: a `RunOptions` whose wishes are merged with those of everyone else.

    >>> SessionRunArgs({"step": "global_step:0"}).feed_dict is None
    True
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None


class SessionRunValues(NamedTuple):
    """What a run gave to one hook; the argument of `SessionRunHook.after_run`.

    Attributes:
        results: the values of this hook's own fetches in the structure it asked for; None if it asked for
            nothing.
        options: the merged options the run was executed with.
        run_metadata: what the engine reported about the run, one object shared by all hooks.

    >>> SessionRunValues(results=[1.0], options=None, run_metadata=None).results
    [1.0]
    """

    results: Any
    options: RunOptions | None
    run_metadata: RunMetadata | None


class SessionRunContext:
    """One run as its hooks see it: the same object reaches every `before_run` and `after_run` of the run.

    >>> context = SessionRunContext(SessionRunArgs("loss"), session=None)
    >>> context.request_stop()
    >>> context.stop_requested
    True
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False
        self._on_success: list[Callable[[], None]] = []

    @property
    def original_args(self) -> SessionRunArgs:
        """The caller's fetches and feeds, before any hook; the caller's options are not part of it."""
        return self._original_args

    @property
    def session(self) -> Any:
        """The raw engine session: running it calls no hooks."""
        return self._session

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked to stop after this run."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Make the monitored session's `should_stop()` true after this run; cannot be taken back."""
        self._stop_requested = True

    def on_success(self, action: Callable[[], None]) -> None:
        """Do something once `after_run` of every hook has returned; not at all if one of them fails.

        For what must not outlive a run that failed, such as a checkpoint.
        """
        self._on_success.append(action)

    def succeeded(self) -> None:
        """Do what hooks left for the success of the run, in the order they asked."""
        while self._on_success:
            self._on_success.pop(0)()


@dataclass(slots=True)
class MergedRequest:
    """One engine run that serves the caller and all hooks."""

    fetches: Any
    feed_dict: dict[Any, Any] | None
    options: RunOptions
    hook_slots: dict[int, int]
    """Position in `fetches` by hook identity; empty when the caller's fetches stand alone."""

    def results_for_caller(self, results: Any) -> Any:
        """What the caller would have got without hooks."""
        return results[0] if self.hook_slots else results

    def results_for_hook(self, hook: object, results: Any) -> Any:
        """What `hook` asked for, or None."""
        slot = self.hook_slots.get(id(hook))
        return None if slot is None else results[slot]


def merge_requests(
    caller: SessionRunArgs, caller_options: RunOptions | None, requests: Sequence[tuple[object, Any]]
) -> MergedRequest:
    """Join the caller's request and the hooks' requests into one run.

    Args:
        caller: the caller's fetches and feeds; neither is modified.
        caller_options: copied before a hook's options are merged in, because a caller who passes one object
            to every run would otherwise collect the watches of every run in it.
        requests: (hook, what its `before_run` returned), in hook order. A hook that is listed twice asks
            twice; its second fetches replace the first.

    Raises:
        RuntimeError: two parties feed the same tensor.
        TypeError: a hook returned something that is no `SessionRunArgs`.
    """
    fetches: list[Any] = [caller.fetches]
    hook_slots: dict[int, int] = {}
    hook_feeds: dict[Any, Any] = {}
    options = caller_options
    for hook, request in requests:
        if request is None:
            continue
        if not (
            hasattr(request, "fetches") and hasattr(request, "feed_dict") and hasattr(request, "options")
        ):
            raise TypeError(
                f"before_run of {type(hook).__name__} returned {request!r}; it must return None or "
                "SessionRunArgs(fetches, feed_dict, options)."
            )
        if request.fetches is not None:
            slot = hook_slots.setdefault(id(hook), len(fetches))
            if slot == len(fetches):
                fetches.append(request.fetches)
            else:
                fetches[slot] = request.fetches
        if request.feed_dict:
            _refuse_conflicts(hook_feeds, request.feed_dict, "Two hooks feed the same tensor")
            hook_feeds.update(request.feed_dict)
        if request.options is not None:
            if options is caller_options:
                options = _copy_options(caller_options)
            assert options is not None
            options.merge_from(request.options)

    feeds: dict[Any, Any] | None = None if caller.feed_dict is None else dict(caller.feed_dict)
    if hook_feeds:
        feeds = feeds or {}
        _refuse_conflicts(feeds, hook_feeds, "A hook and the caller of run() feed the same tensor")
        feeds.update(hook_feeds)
    return MergedRequest(
        fetches if hook_slots else caller.fetches,
        feeds,
        RunOptions() if options is None else options,
        hook_slots,
    )


def _copy_options(options: RunOptions | None) -> RunOptions:
    copy = RunOptions()
    if options is not None:
        copy.merge_from(options)
    return copy


def feed_key(key: Any) -> Hashable:
    """The tensor a feed key stands for: `"x"`, `"x:0"` and a reference to it are the same key.

    >>> feed_key("x")
    'x:0'
    """
    name = key if isinstance(key, str) else getattr(key, "name", None)
    if isinstance(name, str):
        node, slot = split_tensor_name(name)
        return tensor_name(node, slot or 0)
    return key  # type: ignore[no-any-return]


def _refuse_conflicts(first: Mapping[Any, Any], second: Mapping[Any, Any], what: str) -> None:
    taken = {feed_key(key) for key in first}
    conflicts = sorted(str(feed_key(key)) for key in second if feed_key(key) in taken)
    if conflicts:
        raise RuntimeError(f"{what}: {', '.join(conflicts)}. Only one of them may feed it in a run.")
