"""How healths look."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensortap.analyze.health import Health

__all__ = ["health_piece", "sparkline"]


def health_piece(health: Health | None) -> tuple[str, str]:
    """The health of a tensor and its style.

    >>> health_piece(None)
    ('not recorded', 'dim')
    """
    if health is None:
        return "not recorded", "dim"
    return str(health), "red" if health.is_bad else "green" if health.was_read else "yellow"


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Numbers as a row of bars, on a logarithmic scale if they span more than three powers of ten.

    >>> sparkline([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, math.nan], 20)
    '▁▂▃▄▅▆▇█×'
    """
    values = [values[i * len(values) // width] for i in range(width)] if len(values) > width else list(values)
    finite = [each for each in values if math.isfinite(each)]
    positive = [each for each in finite if each > 0]
    if positive and max(positive) > 1000 * min(positive):
        low = min(positive)
        values = [math.log10(max(each, low)) if math.isfinite(each) else each for each in values]
        finite = [each for each in values if math.isfinite(each)]
    if not finite:
        return "×" * len(values)
    low, high = min(finite), max(finite)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((each - low) * scale)] if math.isfinite(each) else "×" for each in values)
