"""What an array looks like in a few numbers, for arrays of any size and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Summary", "summarize"]

_CHUNK = 1 << 20  # elements looked at together: bounds the memory a large mapped array takes


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of the kinds of elements, and statistics of the finite ones (None if there are none)."""

    elements: int
    nan: int
    neg_inf: int
    negative: int
    zero: int
    positive: int
    pos_inf: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None


@np.errstate(all="ignore")  # NaN and infinities are what is looked for: no reason to warn of them
def summarize(array: npt.NDArray[Any]) -> Summary | None:
    """Summarise a numeric or boolean array; None for anything else. Complex numbers count by magnitude.

    >>> summarize(np.array([1.0, -2.0, 0.0, np.nan, np.inf])).nan
    1
    """
    flat = np.asarray(array).reshape(-1)
    if not (flat.dtype.kind in "biufc" or flat.dtype.kind == "V"):
        return None
    counts = np.zeros(6, np.int64)
    low, high = np.inf, -np.inf
    count, mean, deviations = 0, 0.0, 0.0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        try:
            values = np.abs(part) if part.dtype.kind == "c" else part.astype(np.float64)
        except (TypeError, ValueError):
            return None
        finite = values[np.isfinite(values)]
        counts += [
            np.isnan(values).sum(),
            np.isneginf(values).sum(),
            (finite < 0).sum(),
            (finite == 0).sum(),
            (finite > 0).sum(),
            np.isposinf(values).sum(),
        ]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            # Merge mean and squared deviations of the parts: one pass, without losing digits.
            part_mean = float(finite.mean())
            shift = part_mean - mean
            total = count + finite.size
            deviations += float(np.square(finite - part_mean).sum())
            deviations += shift * shift * count * finite.size / total
            mean += shift * finite.size / total
            count = total
    known = count > 0
    nan, neg_inf, negative, zero, positive, pos_inf = (int(each) for each in counts)
    return Summary(
        elements=flat.size,
        nan=nan,
        neg_inf=neg_inf,
        negative=negative,
        zero=zero,
        positive=positive,
        pos_inf=pos_inf,
        min=low if known else None,
        max=high if known else None,
        mean=mean if known else None,
        std=(deviations / count) ** 0.5 if known else None,
    )
