"""How far an optimizer has come, and which of its updates are looked at."""

from __future__ import annotations

from typing import Any

from tensortap.records import Frame
from tensortap.sink.retention import is_sample

__all__ = ["Course"]

UNUSUAL_KEPT = 32
"""Updates unlike all before that are looked at, of one optimizer, each with the two after it."""


COMPARED_ALL, COMPARED_EVERY = 32, 4
"""So many updates are compared with those before, then every so many: what goes on being unlike them is not missed."""


class Course:
    """The first updates are looked at, then ever fewer, and those that are unlike all before.

    Args:
        name: of the optimizer.
        events_before: how many events there were before its next step can have begun.

    Attributes:
        made: the line that made the optimizer.
        schedule: the line that made a schedule of its learning rate.
        variable: what the program calls it; None as long as nobody has looked.
        count: of its steps.
        last_step: how many steps of all optimizers there were when it last took one.

    >>> course = Course("SGD", 0)
    >>> course.count = 24
    >>> course.wants("as ever"), course.wants("as ever"), course.wants("another"), course.looks_next
    (True, True, True, True)
    """

    def __init__(self, name: str, events_before: int) -> None:
        self.name = name
        self.events_before = events_before
        self.made: Frame | None = None
        self.schedule: Frame | None = None
        self.variable: str | None = None
        self.count = 0
        self.last_step = 0
        self._unusual: set[Any] = set()
        self._looks_until = 0

    @property
    def looks_next(self) -> bool:
        """Whether the next update is looked at, whatever leads to it."""
        return is_sample(self.count) or self.count < self._looks_until

    @property
    def is_compared(self) -> bool:
        """Whether the next update is compared with those before, looked at or not: all at first, then some."""
        return self.count < COMPARED_ALL or not self.count % COMPARED_EVERY

    def wants(self, signature: Any) -> bool:
        """Whether the present update is looked at, to which this has led."""
        if signature is not None and signature not in self._unusual and len(self._unusual) < UNUSUAL_KEPT:
            self._unusual.add(signature)
            self._looks_until = self.count + 3
        return self.looks_next
