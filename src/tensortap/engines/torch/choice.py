"""Which interceptor observes a run: the fast one where it is to be had and can do what the run needs."""

from __future__ import annotations

import logging
import os
from functools import cache

from tensortap.engines.torch.dispatch import DispatchInterceptor
from tensortap.engines.torch.interceptor import Interceptor, RunPlan
from tensortap.engines.torch.names import RunNames
from tensortap.errors import InvalidArgumentError, NativeBuildError
from tensortap.suggest import nearest

__all__ = ["Interceptors"]

log = logging.getLogger("tensortap.engine")

VARIABLE = "TENSORTAP_INTERCEPTOR"
_CHOICES = ("auto", "native", "dispatch")


class Interceptors:
    """The interceptors of a session.

    Args:
        choice: `native`, `dispatch`, or `auto`: native if it can be built here. Where no choice is made, the
            environment variable TENSORTAP_INTERCEPTOR makes it.

    Raises:
        InvalidArgumentError: an unknown choice.
    """

    def __init__(self, choice: str | None = None) -> None:
        given = choice if choice is not None else os.environ.get(VARIABLE, "auto")
        if given not in _CHOICES:
            where = "interceptor=" if choice is not None else f"{VARIABLE}="
            raise InvalidArgumentError(
                None,
                f"{where}{given!r}: expected one of {', '.join(_CHOICES)}.{nearest(str(given), _CHOICES)}",
            )
        self._choice = given
        self._observing: Interceptor | None = None
        self._interfering = DispatchInterceptor()

    def for_run(self, plan: RunPlan) -> Interceptor:
        """The interceptor for a run: feeding values, stopping at breakpoints, ending a run in time and what is
        around code that stays compiled need the dispatch mode.

        Raises:
            NativeBuildError: the native interceptor was asked for by name and cannot be had.
        """
        stops = plan.watching is not None and plan.watching.stops
        if plan.feeds or plan.deadline is not None or plan.stays_compiled or stops:
            self.release()
            return self._interfering
        if self._observing is None:  # not before it is needed: it may have to be built
            self._observing = self._choose()
        return self._observing

    @property
    def is_native(self) -> bool:
        """Whether runs are observed by the native interceptor, those excepted that need the dispatch mode."""
        return self._observing is not None and not self._observing.can_interfere

    def release(self) -> None:
        """Remove what an interceptor has left installed for the next run."""
        if self._observing is not None:
            self._observing.release()

    def replace(self, names: RunNames, heir: RunNames) -> bool:
        """Forget what is known by the names of a table that another takes the place of; False if they are in use."""
        return self._observing is None or self._observing.replace(names, heir)

    def _choose(self) -> Interceptor:
        if self._choice == "dispatch":
            return self._interfering
        # Imported here: the dispatch mode must work where nothing can be compiled.
        from tensortap.engines.torch.observer.interceptor import NativeInterceptor

        try:
            return NativeInterceptor()
        except NativeBuildError as error:
            if self._choice == "native":
                raise
            _say_once(str(error))
            return self._interfering


@cache
def _say_once(reason: str) -> None:
    log.warning(
        "Watched runs use the dispatch mode, which is several times slower than the native interceptor: %s "
        "Set %s=dispatch to accept it silently.",
        reason,
        VARIABLE,
    )
