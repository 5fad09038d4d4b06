"""Samples of a data set that were bad when a worker of a data loader had made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["BadSample"]


@dataclass(frozen=True, slots=True)
class BadSample:
    """A tensor of a batch that holds NaN or infinities, and what it was made of.

    Attributes:
        worker: number of the worker in its loader.
        sample: the first bad sample in the batch: its index in the data set, or its number among those of this worker;
            empty if no sample was bad.
        more: how many other samples of the batch were bad.
        maker: what returned it, such as `Ratios.__getitem__`, or the function that made a batch of good samples.
        line: of that function, as text; empty if it is not known.
        elements: of the tensor in the batch.
        nan: how many of them are NaN.
        neg_inf: how many are -inf.
        pos_inf: how many are inf.
        mean: of the others; 0 if there are none.

    >>> told = BadSample(1, "17", 0, "Ratios.__getitem__", "data.py:31", 32, 8, 0, 0, 0.5)
    >>> BadSample.from_dict(told.as_dict()) == told
    True
    """

    worker: int
    sample: str
    more: int
    maker: str
    line: str
    elements: int
    nan: int
    neg_inf: int
    pos_inf: int
    mean: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> BadSample:
        """From JSON; what has the wrong form raises TypeError or ValueError."""
        told = dict(facts)
        return cls(
            int(told.get("worker", -1)),
            str(told.get("sample", "")),
            int(told.get("more", 0)),
            str(told.get("maker", "")),
            str(told.get("line", "")),
            int(told.get("elements", 0)),
            int(told.get("nan", 0)),
            int(told.get("neg_inf", 0)),
            int(told.get("pos_inf", 0)),
            float(told.get("mean", 0.0)),
        )
