"""Elements that are not there."""

from __future__ import annotations

import numpy as np

from tensortap.analyze.case import Case
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause

__all__ = ["out_of_bounds"]


def out_of_bounds(case: Case) -> Cause | None:
    """Indices beyond the end, where a framework fills with NaN and does not raise."""
    given = case.health(0)
    fills = "fill" in str(case.node.attributes.get("mode", "")).lower()
    if not fills or not case.out.nan or given is None or given.nan:
        return None
    return Cause(
        "index-out-of-bounds",
        f"An index is out of bounds, and what is not there is filled with NaN: "
        f"{count(case.out.nan, case.out.elements, 'nan')}.{_range(case)}",
        advice="Check the indices against the size; mode='clip' or an explicit fill_value says what else is meant.",
    )


def _range(case: Case) -> str:
    """Which indices there were, if they were recorded."""
    indices = case.value(1)
    if indices is None or indices.dtype.kind not in "iu" or not indices.size:
        return ""
    low, high = int(indices.min()), int(indices.max())
    text = f" The indices in {case.named(1)} go from {low} to {high}."
    if low < 0:
        text += (
            " One that is negative even after counting from the end was negative by mistake, as happens when a product "
            f"exceeds {np.iinfo(indices.dtype).max}, the largest {indices.dtype.name}."
        )
    return text
