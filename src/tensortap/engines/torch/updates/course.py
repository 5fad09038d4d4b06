"""How far an optimizer has come, and which of its updates are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensortap.records import Frame
from tensortap.sink.retention import is_sample

if TYPE_CHECKING:
    from tensortap.engines.torch.updates.parameters import ListedParameters

__all__ = ["Course"]

UNUSUAL_KEPT = 32
"""Updates unlike all before that are looked at, of one optimizer, each with the two after it."""


COMPARED_ALL, COMPARED_OFTEN = 32, 1024
OFTEN, SELDOM = 8, 64
"""So many updates are compared with those before, then one of a few, then one of many: what goes on being unlike
them is not missed."""

LATE_BEGIN = 12
"""Updates of an optimizer that are not looked at where many were made before it: most of such live for a few steps."""


class Course:
    """The first updates are looked at, then ever fewer, and those that are unlike all before.

    Args:
        name: of the optimizer.
        events_before: how many events there were before its next step can have begun.
        begins: the first of its updates that is looked at.

    Attributes:
        made: the line that made the optimizer.
        schedule: the line that made a schedule of its learning rate.
        variable: what the program calls it; None as long as nobody has looked.
        count: of its steps.
        listed: the parameters that were looked at with its last update.
        last_step: how many steps of all optimizers there were when it last took one.
        wakes_at: until it has come so far, its updates are neither looked at nor compared.

    >>> course = Course("SGD", 0)
    >>> course.count = 24
    >>> course.wants("as ever"), course.wants("as ever"), course.wants("another"), course.looks_next
    (True, True, True, True)
    """

    def __init__(self, name: str, events_before: int, begins: int = 0) -> None:
        self.name = name
        self.events_before = events_before
        self.made: Frame | None = None
        self.schedule: Frame | None = None
        self.variable: str | None = None
        self.listed: ListedParameters | None = None
        self.count = 0
        self.last_step = 0
        self.wakes_at = begins
        self._begins = begins
        self._unusual: set[Any] = set()
        self._looks_until = 0

    @property
    def looks_next(self) -> bool:
        """Whether the next update is looked at, whatever leads to it."""
        return self._looks_at(self.count)

    def sleep(self) -> bool:
        """Work out when it wakes, after an update; whether that is later than with the next."""
        self.wakes_at = self.count
        while not (self._looks_at(self.wakes_at) or self._compares(self.wakes_at)):
            self.wakes_at += 1
        return self.wakes_at > self.count

    def wants(self, signature: Any) -> bool:
        """Whether the present update is looked at, to which this has led."""
        if self.count < self._begins:
            return False
        if signature is not None and signature not in self._unusual and len(self._unusual) < UNUSUAL_KEPT:
            self._unusual.add(signature)
            self._looks_until = self.count + 3
        return self.looks_next

    def _looks_at(self, count: int) -> bool:
        return count >= self._begins and (is_sample(count - self._begins) or count < self._looks_until)

    def _compares(self, count: int) -> bool:
        since = count - self._begins
        return since >= 0 and (
            since < COMPARED_ALL or not since % (OFTEN if since < COMPARED_OFTEN else SELDOM)
        )
