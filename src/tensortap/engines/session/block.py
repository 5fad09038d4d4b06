"""Hooks around a training loop that stays as it is.

The block of `with m.run():` takes the place of the step function: it is one run, observed and fetched from
like any other. What cannot be done without a function is to run it again, so a monitor never recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tensortap.debug.guarding import share_budget
from tensortap.engines.observe.observation import NOT_OBSERVED
from tensortap.engines.session.core import EngineSession
from tensortap.engines.session.request import resolve
from tensortap.errors import SessionClosedError
from tensortap.hooks.creators import ChiefSessionCreator
from tensortap.hooks.live import LiveSession
from tensortap.hooks.monitored import Monitored
from tensortap.hooks.recovery import RecoveryPolicy
from tensortap.seam.options import RunMetadata, RunOptions

__all__ = ["BlockSession", "Monitor", "MonitoredRun"]


class BlockSession(EngineSession):
    """The engine session behind a monitor: reads state at any time, runs only what stands in `m.run()`."""

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Read state (parameters, optimizer state, `global_step:0`)."""
        self.check_open()
        request = resolve(self, fetches, feed_dict, ())
        if not request.is_state_only:
            raise RuntimeError(
                f"Cannot fetch {fetches!r} here: the step is the block of `with m.run():`, so it cannot be "
                "run from elsewhere. Ask for it in before_run, or fetch state such as 'global_step:0'."
            )
        return request.values(self, None, NOT_OBSERVED)

    def make_callable(
        self, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Callable[[], Any]:
        """A function that reads the state named by `fetches`."""
        return lambda: self.run(fetches)


class MonitoredRun:
    """One run of a monitored loop.

    Attributes:
        results: what was fetched, once the block has ended.

    >>> import torch, tensortap as tt
    >>> model = torch.nn.Linear(3, 1)
    >>> with tt.torch.monitor(model) as m, m.run("loss") as run:
    ...     run.publish(loss=model(torch.zeros(2, 3)).square().sum())
    >>> bool(run.results >= 0)
    True
    """

    def __init__(self) -> None:
        self._published: dict[str, Any] = {}
        self.results: Any = None

    def publish(self, **values: Any) -> None:
        """Give values of the loop names under which hooks can fetch them, such as `publish(loss=loss)`."""
        self._published.update(values)


class Monitor(Monitored):
    """Hooks around the runs of a loop; made by the `monitor` of an engine.

    Args:
        session: behind it.
        hooks: around its runs.
        grace_secs: how long threads may take to stop at the end.
        budget: time of the program with us over its time without; all runs are watched by default.

    >>> import torch, tensortap as tt
    >>> with tt.torch.monitor(torch.nn.Linear(3, 1)) as m:
    ...     m.session.global_step
    0
    """

    def __init__(
        self,
        session: BlockSession,
        hooks: Iterable[Any] | None,
        grace_secs: float,
        budget: float | None = None,
    ) -> None:
        given = list(hooks or ()) if budget is not None else hooks
        self._guarding = None if budget is None else share_budget(budget, given or ())
        super().__init__(ChiefSessionCreator(session=session), given, grace_secs, RecoveryPolicy(0, 0.0))
        self._session = session
        self._running = False

    @property
    def session(self) -> BlockSession:
        """The engine session: its graph, its global step, its state."""
        return self._session

    def abandon_run(self) -> None:
        """Accept the next run although one has begun in a thread that cannot be made to end it."""
        self._running = False

    @contextmanager
    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        hooks: Iterable[Any] | None = None,
    ) -> Iterator[MonitoredRun]:
        """Execute the block as one run, with hooks around it.

        Args:
            fetches: tensor names, or names given by `publish`; their values are in `results` afterwards.
            feed_dict: values for tensors of the block, by name.
            options: see `RunOptions`.
            run_metadata: filled as its class says.
            hooks: call only these hooks of this monitor; [] calls none.
        """
        live = self._live
        if self._closed or live is None:
            raise SessionClosedError("This monitor is closed; make a new one.")
        if self._running:
            raise RuntimeError("A run of this monitor is being executed; runs cannot be nested.")
        live.refuse_when_stopped()
        if self._guarding is None:
            yield from self._run(live, fetches, feed_dict, options, run_metadata, hooks)
            return
        self._guarding.begins(self._session)
        try:
            yield from self._run(live, fetches, feed_dict, options, run_metadata, hooks)
        finally:
            self._guarding.ended()

    def _run(
        self,
        live: LiveSession,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
        hooks: Iterable[Any] | None,
    ) -> Iterator[MonitoredRun]:
        session = self._session
        run = MonitoredRun()
        metadata = RunMetadata() if run_metadata is None else run_metadata
        pending = live.before_run(self._select(hooks), fetches, feed_dict, options)
        merged = pending.request
        request = resolve(session, merged.fetches, merged.feed_dict, ())
        self._running = True
        try:
            with session.observed(request, merged.options, {}) as seen:
                yield run
        finally:
            self._running = False
        session.result_keys = tuple(run._published)
        results = session.finish(request, run._published, seen, merged.options, metadata)
        run.results = live.after_run(pending, results, metadata)
