"""One tensor over the runs of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensortap.analyze.health import Health
from tensortap.pill import PILL_COLUMNS

if TYPE_CHECKING:
    from tensortap.reader import SessionDir

__all__ = ["PLACE_COLUMNS", "history_of", "joined"]

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


def joined(history: npt.NDArray[Any], points: int) -> npt.NDArray[Any]:
    """At most so many rows: neighbours are joined, so that no bad value and no extreme gets lost.

    Args:
        history: as `history_of` makes it.
        points: how many rows are left; the first of those that are joined tells run and time.

    >>> from tensortap.store.health import history_dtype
    >>> rows = np.zeros(3, history_dtype())
    >>> rows["min"], rows["nan"], rows["positive"], rows["mean"] = [3, 1, 2], [0, 1, 0], 1, [1, 3, 2]
    >>> joined(rows, 2)[["min", "nan", "mean"]].tolist()
    [(3.0, 0.0, 1.0), (1.0, 1.0, 2.5)]
    """
    if len(history) <= points:
        return history
    starts = np.arange(points) * len(history) // points
    found = history[starts].copy()
    finite = history["negative"] + history["zero"] + history["positive"] > 0
    lowest, highest = np.where(finite, history["min"], np.inf), np.where(finite, history["max"], -np.inf)
    found["min"], found["max"] = np.minimum.reduceat(lowest, starts), np.maximum.reduceat(highest, starts)
    for name in ("nan", "neg_inf", "pos_inf"):
        found[name] = np.maximum.reduceat(history[name], starts)
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(all="ignore"):
        for name in ("mean", "variance"):
            sums = np.add.reduceat(np.where(finite, history[name], 0.0), starts)
            found[name] = sums / np.where(counts > 0, counts, np.nan)
    for name in ("negative", "zero", "positive", "elements"):
        found[name] = np.maximum.reduceat(history[name], starts)
    return found


def _from_values(session: SessionDir, tensor: str, form: Any) -> npt.NDArray[Any]:
    rows: list[tuple[Any, ...]] = []
    for debug_op in ("DebugIdentity", "DebugNanCount"):
        for *place, value in session.each_value(tensor, debug_op):
            health = (
                Health.of_value(value)
                if debug_op == "DebugIdentity"
                else Health.of_nan_count(int(np.reshape(value, -1)[0]))
            )
            if health is not None:
                rows.append((*place, *health[: len(PILL_COLUMNS)]))
        if rows:
            break
    found = np.array(rows, form)
    return found[np.argsort(found["timestamp"], kind="stable")]
