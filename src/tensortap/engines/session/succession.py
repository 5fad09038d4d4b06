"""Runs that follow each other without a gap and are watched alike, as those of a program that nobody changed.

Opening a run for each step must cost little where a step takes a millisecond: what is the same for all of them is made
once. `EngineSession.observed` does the same for a run of its own.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tensortap.engines.observe.observation import NOT_OBSERVED, Observation, RunPlan
from tensortap.engines.session.request import Request
from tensortap.records import RunInfo
from tensortap.seam.options import RunOptions

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching
    from tensortap.engines.session.core import EngineSession

__all__ = ["Succession"]

_NOTHING_FETCHED = Request(None)


class Succession:
    """One run after the other, of which nothing is fetched, and no step counted.

    Args:
        session: whose runs they are.
    """

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._options: RunOptions | None = None
        self._watching: Watching | None = None
        self._plan: RunPlan | None = None
        self._intercepted: AbstractContextManager[Observation] | None = None
        self._seen = NOT_OBSERVED

    @property
    def met(self) -> int:
        """When ranks first exchanged something in the last run, in microseconds since the epoch; 0 if they did not."""
        return self._seen.met

    def begin(self, options: RunOptions | None) -> None:
        """A run begins, watched as the options say, which nobody changes afterwards; None for not at all."""
        session = self._session
        if options is None:
            session.release()
            return
        session.before_observing()
        watching = self._watching_of(options)
        plan = self._plan
        if plan is not None and plan.watching is watching and plan.deadline is None:
            session.plan_again(plan, _NOTHING_FETCHED, options)
        else:
            plan = self._plan = session.plan_of(_NOTHING_FETCHED, options, {}, watching)
        if session.limits is not None:
            session.limits.reached = False
        self._seen = NOT_OBSERVED
        try:
            intercepted = session.intercepted(plan)
            self._seen = intercepted.__enter__()
        except BaseException as failure:
            session.finish_watching(watching, NOT_OBSERVED, _text_of(failure))
            raise
        self._intercepted = intercepted

    def end(self, error: BaseException | None = None) -> None:
        """The run is over, by an exception of the program perhaps."""
        intercepted, self._intercepted = self._intercepted, None
        if intercepted is None or self._watching is None or self._plan is None:
            return
        told = None if error is None else _text_of(error)
        try:
            if error is None:
                intercepted.__exit__(None, None, None)
            else:
                intercepted.__exit__(type(error), error, error.__traceback__)
        except BaseException as failure:
            if failure is not error:
                told = _text_of(failure)
                raise
        finally:
            self._session.finish_watching(self._watching, self._seen, told)
        if error is None:
            self._session.after_observing(self._plan, self._seen, is_only_measured=False)

    def _watching_of(self, options: RunOptions) -> Watching:
        """What shows the tensors of a run to its sinks: that of the last run, with sinks of its own."""
        session, known = self._session, self._watching
        if known is not None and options is self._options and known.may_go_on:
            known.begin_next(
                RunInfo(session.next_index(), session.global_step, time.time_ns() // 1000, session.rank())
            )
            return known
        self._watching, self._options = session.watching_of(_NOTHING_FETCHED, options), options
        assert self._watching is not None
        return self._watching


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else "interrupted"
