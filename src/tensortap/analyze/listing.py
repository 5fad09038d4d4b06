"""The records of a run, each with what is known of it at a glance: form, size, op, and whether it is bad."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensortap.analyze.health import NOT_LOOKED_AT, Health
from tensortap.errors import DamagedValueError
from tensortap.pill import PILL_COLUMNS, PILL_OP, is_pill

if TYPE_CHECKING:
    from tensortap.reader import DebugDumpDir, DebugTensorDatum

__all__ = ["RecordRow", "list_records", "pill_numbers"]

_WITHOUT_HEALTH = ("DebugHash", "DebugIndices")


def list_records(
    run: DebugDumpDir, chosen: Callable[[DebugTensorDatum], bool] = lambda datum: True
) -> list[RecordRow]:
    """The records of a run in the order of time; only those for which `chosen` holds."""
    return [RecordRow(run, datum) for datum in run.dumped_tensor_data if chosen(datum)]


class RecordRow:
    """One record of a run; what costs something is worked out when it is asked for.

    Attributes:
        run: whose record it is.
        datum: the record.
    """

    def __init__(self, run: DebugDumpDir, datum: DebugTensorDatum) -> None:
        self.run = run
        self.datum = datum

    @cached_property
    def pill(self) -> Health | None:
        """The health pill, if it is one."""
        if self.datum.debug_op != PILL_OP:
            return None
        try:
            value: Any = self.datum.get_tensor()
        except DamagedValueError:
            return None  # named in the notices
        return Health.of_pill(value) if is_pill(PILL_OP, value) else None

    @property
    def was_read(self) -> bool:
        """Whether somebody could look at the elements of the tensor, as far as is known."""
        return self.pill is None or self.pill.was_read

    def is_bad(self, reads_values: bool = True) -> bool | None:
        """Whether the tensor had NaN or infinite elements.

        Args:
            reads_values: read whole values, if there is nothing shorter.

        Returns:
            None if that is not known, or only reading the whole value would tell.
        """
        from tensortap.reader import has_inf_or_nan

        op = self.datum.debug_op
        if op in _WITHOUT_HEALTH or (op == "DebugIdentity" and not reads_values):
            return None
        try:
            return has_inf_or_nan(self.datum, self.datum.get_tensor())
        except DamagedValueError:
            return None  # named in the notices

    def health_words(self, reads_values: bool = True) -> str | None:
        """How well the tensor is, in a word or its bad elements by kind; None if that is not known."""
        if not self.was_read:
            return NOT_LOOKED_AT
        bad = self.is_bad(reads_values)
        if bad is None:
            return None
        if not bad:
            return "good"
        if self.datum.debug_op == PILL_OP:
            return (self.pill.bad_counts if self.pill is not None else "") or "good"
        if self.datum.debug_op == "DebugNanCount":
            count: Any = self.datum.get_tensor()
            return f"{int(count[0])} nan"
        return "bad"

    @property
    def op_type(self) -> str:
        """The op that made the tensor; `?` in a run that died before its graph was stored."""
        try:
            return str(self.run.node_op_type(self.datum.node_name, self.datum.device_name))
        except (LookupError, ValueError):
            return "?"

    @property
    def milliseconds(self) -> float:
        """Time since the first record of the run."""
        return (self.datum.timestamp - (self.run.t0 or self.datum.timestamp)) / 1000


def pill_numbers(pill: Health) -> dict[str, float]:
    """The numbers of a pill by the names of its columns."""
    numbers: Any = pill  # the shape behind them is left out
    return dict(zip(PILL_COLUMNS, numbers, strict=False))
