"""One tensor over the runs of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensortap.analyze.health import Health
from tensortap.pill import PILL_COLUMNS

if TYPE_CHECKING:
    from tensortap.reader import SessionDir

__all__ = ["PLACE_COLUMNS", "history_of"]

PLACE_COLUMNS = ("task", "run", "step", "timestamp")


def history_of(
    session: SessionDir,
    tensor: str,
    *,
    task: int | None = None,
    last: int | None = None,
    reads_values: bool = True,
) -> npt.NDArray[Any]:
    """The health of a tensor in each run, in the order of time.

    Args:
        session: the session directory.
        tensor: `node:slot`.
        task: only of this rank.
        last: only so many of the newest.
        reads_values: where no health was recorded, work it out from recorded values, or from their numbers of NaNs.

    Returns:
        A structured array with `PLACE_COLUMNS` and the columns of a pill.
    """
    found = session.history(tensor)
    if not len(found) and reads_values:
        found = _from_values(session, tensor, found.dtype)
    if task is not None:
        found = found[found["task"] == task]
    if last is None:
        return found
    return found[-last:] if last > 0 else found[:0]


def _from_values(session: SessionDir, tensor: str, form: Any) -> npt.NDArray[Any]:
    rows: list[tuple[Any, ...]] = []
    for debug_op in ("DebugIdentity", "DebugNanCount"):
        for each in session.history(tensor, debug_op):
            value = each["value"]
            health = (
                Health.of_value(value)
                if debug_op == "DebugIdentity"
                else Health.of_nan_count(int(value.reshape(-1)[0]))
            )
            if health is not None:
                rows.append((*(each[name] for name in PLACE_COLUMNS), *health[: len(PILL_COLUMNS)]))
        if rows:
            break
    return np.array(rows, form)
