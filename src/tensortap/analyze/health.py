"""How well a tensor is: the numbers of its pill, whether they were recorded or are worked out from its value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tensortap.analyze.numbers import summarize
from tensortap.dtypes import DTYPE_NAMES, DTYPE_NUMBERS
from tensortap.pill import COUNTS, ELEMENTS, NO_STATISTICS, PILL_SIZE, POS_INF, is_bad

__all__ = ["NOT_LOOKED_AT", "Health", "number_text"]

NOT_LOOKED_AT = "not looked at"
"""What is said of a tensor that was recorded without its elements being read: neither good nor bad."""


class Health(NamedTuple):
    """The health of one tensor at one moment: a pill's numbers in their order, and the shape behind them.

    `min`, `max`, `mean` and `variance` are those of the finite elements; without any they are infinite or NaN.

    >>> health = Health.of_value(np.array([1.0, -3.0, 0.0, np.nan, np.inf]))
    >>> print(health)
    1 nan, 1 +inf of 5
    >>> health.is_bad, health.magnitude
    (True, 3.0)
    """

    initialized: float
    elements: float
    nan: float
    neg_inf: float
    negative: float
    zero: float
    positive: float
    pos_inf: float
    min: float
    max: float
    mean: float
    variance: float
    dtype_number: float
    rank: float
    shape: tuple[int, ...] | None = None

    @classmethod
    def of_pill(cls, pill: Any) -> Health:
        """From a recorded pill, or its bytes."""
        numbers = np.frombuffer(pill, "<f8").tolist()
        return cls._make((*numbers[:PILL_SIZE], tuple(map(int, numbers[PILL_SIZE:]))))

    @classmethod
    def of_nan_count(cls, count: int) -> Health:
        """From a recorded number of NaNs: all that is known is whether there are any."""
        return cls(1, count, count, 0, 0, 0, 0, 0, *NO_STATISTICS, 0, 0, None)

    @classmethod
    def of_value(cls, value: Any) -> Health | None:
        """From a value; None if it is no array of numbers."""
        if isinstance(value, np.generic):  # an element of an array of scalars
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            return None
        found = summarize(value)
        if found is None:
            return None
        counts = (found.nan, found.neg_inf, found.negative, found.zero, found.positive, found.pos_inf)
        statistics = NO_STATISTICS
        if (
            found.min is not None
            and found.max is not None
            and found.mean is not None
            and found.std is not None
        ):
            statistics = (found.min, found.max, found.mean, found.std**2)
        number = DTYPE_NUMBERS.get(str(value.dtype), 0)
        return cls(1, found.elements, *counts, *statistics, number, value.ndim, value.shape)

    def with_part(self, part: Health) -> Health:
        """After part of the tensor was overwritten; how many elements of each kind are left is an upper bound.

        >>> row = Health.of_value(np.array([-1.0]))
        >>> Health.of_value(np.array([1.0, 2.0])).with_part(row).min
        -1.0
        """
        counts = {
            name: min(getattr(self, name) + getattr(part, name), self.elements)
            for name in self._fields[COUNTS]
        }
        if part.finite:
            counts |= {"min": min(self.min, part.min), "max": max(self.max, part.max)}
        return self._replace(**counts)

    @property
    def is_count(self) -> bool:
        """Whether only the number of NaNs is known."""
        return self.shape is None and not self.dtype_number

    @property
    def was_read(self) -> bool:
        """Whether the elements were looked at; those of a tensor that is only a shape, or a wrapper, cannot be."""
        return bool(self.initialized)

    @property
    def is_bad(self) -> bool:
        """Whether there is a NaN or an infinity."""
        return is_bad(self)

    @property
    def infinities(self) -> int:
        """Number of infinities of either sign."""
        return int(self.neg_inf + self.pos_inf)

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return int(self.negative + self.zero + self.positive)

    @property
    def magnitude(self) -> float:
        """The largest finite absolute value, 0 if there is none."""
        return max(abs(self.min), abs(self.max)) if self.finite else 0.0

    @property
    def dtype(self) -> str:
        """Name of the dtype, empty if it is not known."""
        return DTYPE_NAMES.get(int(self.dtype_number), "")

    @property
    def bad_counts(self) -> str:
        """The bad elements by kind."""
        kinds = (("nan", self.nan), ("-inf", self.neg_inf), ("+inf", self.pos_inf))
        return ", ".join(f"{int(count)} {kind}" for kind, count in kinds if count)

    @property
    def spread(self) -> str:
        """Where the finite elements lie."""
        if not self.finite:
            return ""
        if self.min == self.max:
            return f"all {number_text(self.min)}" if self.finite == self.elements else number_text(self.min)
        return f"{number_text(self.min)} to {number_text(self.max)}"

    def __str__(self) -> str:
        if self.is_count:
            return f"{int(self.nan)} nan" if self.nan else "no nan"
        if self.is_bad:
            return f"{self.bad_counts} of {int(self.elements)}"
        if not self.was_read:
            return NOT_LOOKED_AT
        if not self.elements:
            return "empty"
        return "good, " + self.spread

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "status": "bad" if self.is_bad else "good" if self.was_read else NOT_LOOKED_AT,
            **{name: int(getattr(self, name)) for name in self._fields[ELEMENTS : POS_INF + 1]},
            "min": self.min if self.finite else None,
            "max": self.max if self.finite else None,
            "mean": self.mean if self.finite else None,
            "std": math.sqrt(self.variance) if self.finite and self.variance >= 0 else None,
            "dtype": self.dtype or None,
            "shape": None if self.shape is None else list(self.shape),
        }


def number_text(value: float) -> str:
    """A number as short as it is still telling.

    >>> number_text(0.0), number_text(-1234.5678), number_text(6.5504e4), number_text(3e-9), number_text(1.00000024)
    ('0', '-1235', '65504', '3e-09', '1.0000002')
    """
    if value == 0:
        return "0"
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    text = f"{value:.4g}"
    # Just beside one is where functions and their gradients end.
    return f"{value:.8g}" if text in ("1", "-1") else text
