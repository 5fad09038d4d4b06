"""Which reply of a debug server belongs to what: it replies to metadata, graphs and breakpoints, in order (F18)."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from tensortap.records import Record

__all__ = ["LEADING", "Question", "Replies"]

LEADING = "leading"
"""In the place of a question: a graph that was sent before anything else."""


class Question:
    """A record at a breakpoint, and the server's reply to it once it is there."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.reply: Any = None
        self._settled = threading.Event()

    def wait(self, timeout: float) -> bool:
        """Wait until it is settled; False if it is not in time."""
        return self._settled.wait(timeout)

    def settle(self, reply: Any = None) -> None:
        """Let whoever waits go on, with a reply or without."""
        self.reply = reply
        self._settled.set()


class Replies:
    """What replies are expected to, oldest first.

    Once a question has gone unanswered, nobody can tell whether a late reply is to it or to a later one: from then on
    nothing is asked, and no reply is taken for an answer.

    Attributes:
        is_out_of_step: it has come to that.
    """

    def __init__(self) -> None:
        self._expected: deque[Question | str | None] = deque()
        self.is_out_of_step = False

    def restart(self) -> None:
        """Another attempt begins: nothing has been said on it."""
        self._expected.clear()

    def expect(self, question: Question | str | None = None) -> None:
        """Something was sent that the server replies to; a question, or what nobody waits for."""
        self._expected.append(question)

    @property
    def is_next_leading(self) -> bool:
        """Whether the coming reply is to a graph that was sent before the metadata."""
        return bool(self._expected) and self._expected[0] == LEADING

    def take(self, reply: Any) -> None:
        """A reply has come."""
        question = self._expected.popleft() if self._expected else None
        if isinstance(question, Question):
            question.settle(None if self.is_out_of_step else reply)

    def settle_all(self) -> None:
        """No more replies will come."""
        for question in list(self._expected):
            if isinstance(question, Question):
                question.settle(question.reply)
