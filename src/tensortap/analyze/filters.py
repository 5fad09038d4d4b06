"""A user's idea of bad: conditions over the numbers of a health pill."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tensortap.errors import UsageError
from tensortap.pill import PILL_COLUMNS

if TYPE_CHECKING:
    from tensortap.analyze.health import Health

__all__ = ["PILL_NAMES", "condition_of"]

_NUMBERS = tuple(name for name in PILL_COLUMNS if name not in ("initialized", "dtype"))
PILL_NAMES = (*_NUMBERS, "std", "magnitude", "inf")
"""Names a condition may use: the columns of a pill; std, magnitude (the largest absolute value), inf (of any sign)."""


def condition_of(text: str) -> Callable[[Health], bool]:
    """A condition, checked once and asked about many tensors.

    >>> import numpy as np
    >>> from tensortap.analyze.health import Health
    >>> large = condition_of("magnitude > 100 and not nan")
    >>> large(Health.of_value(np.array([1.0, -200.0]))), large(Health.of_value(np.array([1.0])))
    (True, False)

    Raises:
        ExpressionError: it is no condition over the names there are.
    """
    from tensortap.analyze.expression import Expression

    expression = Expression(text, frozenset(PILL_NAMES))

    def holds(health: Health) -> bool:
        names = {name: getattr(health, name) for name in _NUMBERS}
        names["std"] = math.sqrt(health.variance) if health.variance >= 0 else math.nan
        names["magnitude"] = health.magnitude
        names["inf"] = float(health.infinities)
        return bool(expression.evaluate(_no_tensors, names))

    return holds


def _no_tensors(reference: str) -> float:
    raise UsageError(f"a condition cannot read tensors such as `{reference}`")
