"""Which NaN and infinities in a session's state speak against saving it.

| state | NaN | infinity |
|---|---|---|
| parameter that is trained | against | against, unless it was there from the beginning |
| frozen parameter | against, unless from the beginning | against, unless from the beginning |
| optimizer state | against, unless from the beginning | is mentioned |
| buffer | is mentioned, unless from the beginning | is mentioned, unless from the beginning |

Parameters decide, and with them what the next update writes into them. A buffer may hold a mask or the best
loss so far; to stop saving because of it would lose the user's work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, get_args

from tensortap.seam.base import NonFinite

__all__ = ["FiniteGuard", "NonFinitePolicy", "check_policy", "describe", "judged_already", "non_finite_state"]

_log = logging.getLogger("tensortap.hooks")

NonFinitePolicy = Literal["skip", "save", "raise"]
"""What a periodic saver does with bad parameters: keep the last good checkpoint, save and warn, or raise."""

_judged: ContextVar[bool] = ContextVar("tensortap_state_judged", default=False)


class Verdict(NamedTuple):
    """What was found in a state that is about to be saved."""

    against: list[NonFinite]
    mentioned: list[NonFinite]


class FiniteGuard:
    """Judges a session's state before each save, knowing what it held in the beginning."""

    def __init__(self) -> None:
        self._at_first: dict[str, NonFinite] | None = None

    def begin(self, session: Any) -> None:
        """Take this as the beginning; a session that is made anew does not count, it may have trained."""
        if self._at_first is None:
            self._at_first = {each.name: each for each in non_finite_state(session)}

    def judge(self, session: Any) -> Verdict:
        """What speaks against saving, and what is only worth a word."""
        verdict = Verdict([], [])
        for each in non_finite_state(session):
            known = (self._at_first or {}).get(each.name)
            meant = known is not None and (known.nan or not each.nan)
            if each.nan and each.kind == "parameter" and each.trained:
                meant = False
            if meant:
                continue
            decides = each.kind == "parameter" or (each.kind == "optimizer state" and each.nan)
            (verdict.against if decides else verdict.mentioned).append(each)
        return verdict


def non_finite_state(session: Any) -> Sequence[NonFinite]:
    """What of a session's state is not finite; nothing, if the session cannot tell or was judged already."""
    look = getattr(session, "non_finite_state", None)
    if _judged.get() or not callable(look):
        return ()
    try:
        return list(look())
    except Exception as error:
        # Not being able to look is no reason to lose a checkpoint.
        _log.warning("Whether the state is finite could not be found out before saving: %r", error)
        return ()


@contextmanager
def judged_already() -> Iterator[None]:
    """Inside the block nobody looks at the state again."""
    token = _judged.set(True)
    try:
        yield
    finally:
        _judged.reset(token)


def describe(found: Sequence[NonFinite]) -> str:
    """`the parameter model/fc/weight holds NaN, and so do 3 more`.

    >>> describe([NonFinite("model/w", "parameter", nan=False)])
    'the parameter model/w holds infinities'
    """
    worst = min(found, key=lambda each: (not each.nan, each.kind != "parameter"))
    more = len(found) - 1
    rest = f", and {more} more {'is' if more == 1 else 'are'} not finite" if more else ""
    return f"the {worst.kind} {worst.name} holds {'NaN' if worst.nan else 'infinities'}{rest}"


def check_policy(policy: NonFinitePolicy) -> NonFinitePolicy:
    """The policy, if it is one."""
    if policy not in get_args(NonFinitePolicy):
        raise ValueError(f"non_finite must be 'skip', 'save' or 'raise', got {policy!r}.")
    return policy
