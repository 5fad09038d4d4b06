"""Text for a terminal: styled where there is one, plain everywhere else, and useful at 80 columns."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, TypeVar

__all__ = ["Page", "Piece", "is_terminal", "progress"]

Piece = str | tuple[str, str]
"""Text, or text and its style: a style of rich, such as `bold red`."""

LABEL_WIDTH = 9
_MOST_COLUMNS = 110
"""Sentences that run across a wide screen are hard to read."""

_Item = TypeVar("_Item")


class Page:
    """Lines of text with labels in front; written as a whole.

    >>> page = Page(width=44)
    >>> page.line(("Found", "bold"), " something")
    >>> page.field("cause", "a sentence that is too long for one line of this page")
    >>> print(page.plain(), end="")
    Found something
      cause    a sentence that is too long for
               one line of this page
    """

    def __init__(self, width: int | None = None) -> None:
        columns = shutil.get_terminal_size().columns
        self.width = width or max(40, min(columns, _MOST_COLUMNS))
        self._lines: list[list[Piece]] = []

    def line(self, *pieces: Piece) -> None:
        """One line as it is; an empty one without arguments."""
        self._lines.append(list(pieces))

    def text(self, text: str, style: str = "", indent: int = 2) -> None:
        """A sentence, wrapped."""
        for part in self._wrapped(text, indent):
            self.line(" " * indent, (part, style))

    def field(self, label: str, text: str, style: str = "") -> None:
        """A sentence behind a label, wrapped."""
        for place, part in enumerate(self._wrapped(text, LABEL_WIDTH + 2) or [""]):
            self.line("  ", (f"{'' if place else label:<{LABEL_WIDTH}}", "dim"), (part, style))

    def columns(self, label: str, rows: Sequence[Sequence[Piece]]) -> None:
        """Aligned cells behind a label; the last column may be as long as it likes."""
        widths = [max(len(_text(row[i])) for row in rows) for i in range(len(rows[0]))] if rows else []
        for place, row in enumerate(rows):
            cells: list[Piece] = []
            for cell, width in zip(row[:-1], widths, strict=False):
                cells.append((f"{_text(cell):<{width}}  ", _style(cell)))
            self.line("  ", (f"{'' if place else label:<{LABEL_WIDTH}}", "dim"), *cells, row[-1])

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[Piece]], right: Sequence[str] = ()
    ) -> None:
        """Columns with headings; the last one may be as long as it likes."""
        widths = [
            max(len(heading), *(len(_text(row[i])) for row in rows)) if rows else len(heading)
            for i, heading in enumerate(headings)
        ]
        for row in ([(heading, "dim") for heading in headings], *rows):
            cells: list[Piece] = []
            for cell, width, heading in zip(row, widths, headings, strict=True):
                text = _text(cell)
                padded = text.rjust(width) if heading in right else text.ljust(width)
                cells += [(padded, _style(cell)), "  "]
            self.line(*cells[:-2], row[-1])

    def _wrapped(self, text: str, indent: int) -> list[str]:
        return textwrap.wrap(
            text, max(self.width - indent, 20), break_long_words=False, break_on_hyphens=False
        )

    def plain(self) -> str:
        """All of it without styles."""
        return "".join("".join(map(_text, line)).rstrip() + "\n" for line in self._lines)

    def show(self, stream: IO[str] | None = None) -> None:
        """Write it, with styles if somebody looks at it on a terminal."""
        stream = sys.stdout if stream is None else stream
        if not is_terminal(stream):
            stream.write(_writable(self.plain(), stream))
            return
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream, width=10_000, highlight=False, soft_wrap=True)
        for line in self._lines:
            pieces = [(_writable(_text(piece), stream), _style(piece)) for piece in line]
            console.print(Text.assemble(*pieces))


def is_terminal(stream: Any) -> bool:
    """Whether styles make sense on a stream."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or bool(getattr(stream, "isatty", lambda: False)())


def progress(items: Iterable[_Item], total: int, what: str) -> Iterator[_Item]:
    """The items, with a line on standard error that says how far it is, once that takes more than a moment."""
    if total < 2 or not sys.stderr.isatty():
        yield from items
        return
    import time

    began, last, shown = time.monotonic(), 0.0, False
    for place, item in enumerate(items):
        now = time.monotonic()
        if now - began > 0.5 and now - last > 0.1:
            last, shown = now, True
            print(f"\r{what}: {place} of {total}", end="\x1b[K", file=sys.stderr, flush=True)
        yield item
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece[0]


def _style(piece: Piece) -> str:
    return "" if isinstance(piece, str) else piece[1]


_PLAIN = str.maketrans(
    {"✗": "x", "✓": "*", "→": ">", "…": "~", "−": "-", "×": "x", "·": "*", "²": "2", "│": "|"}
)


def _writable(text: str, stream: Any) -> str:
    """The text as a stream can write it: a terminal without Unicode gets plain characters."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text
