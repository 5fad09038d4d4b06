"""Lines of a program, as far as its source was kept with a run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensortap.analyze.facts import RunFacts
from tensortap.records import Frame

__all__ = ["assignment_of", "first_match", "lines_between"]

_MOST_LINES = 20_000


def lines_between(run: RunFacts, file: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """The lines of a file from one to another, with their numbers, as far as they are known."""
    for number in range(max(first, 1), min(last, first + _MOST_LINES) + 1):
        text = run.source_line(Frame(file, number, ""))
        if text is None:
            return
        yield number, text


def first_match(run: RunFacts, file: str, pattern: str) -> Frame | None:
    """The first line of a file in which something is found."""
    wanted = re.compile(pattern)
    for number, text in lines_between(run, file, 1, _MOST_LINES):
        if wanted.search(text):
            return Frame(file, number, "<module>")
    return None


def assignment_of(run: RunFacts, file: str, name: str) -> Frame | None:
    """The first line of a file that gives a variable or an attribute of this name a value."""
    return first_match(run, file, rf"^\s*(self\.)?{re.escape(name)}\s*(:[^=]+)?=[^=]")
