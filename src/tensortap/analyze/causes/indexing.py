"""Elements that are not there."""

from __future__ import annotations

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
        f"{count(case.out.nan, case.out.elements, 'nan')}.",
        advice="Check the indices against the size; mode='clip' or an explicit fill_value says what else is meant.",
    )
