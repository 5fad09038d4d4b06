"""Text for a terminal: styled where there is one, plain everywhere else, and useful at 80 columns."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Any, TypeVar

__all__ = ["Page", "Piece", "cut_middle", "fitted", "is_terminal", "progress", "screen_width", "uncut"]

Piece = str | tuple[str, str]
"""Text, or text and its style: a style of rich, such as `bold red`."""

LABEL_WIDTH = 9
_MOST_COLUMNS = 110
"""Sentences that run across a wide screen are hard to read."""

_ENOUGH, _LEAST = 32, 12
"""How much of a name says what is meant, and how much of anything is left if there is no room at all."""

_Item = TypeVar("_Item")

_is_uncut: ContextVar[bool] = ContextVar("is_uncut", default=False)


@contextmanager
def uncut(is_uncut: bool = True) -> Iterator[None]:
    """Show everything whole inside the block, however long the lines get."""
    token = _is_uncut.set(is_uncut)
    try:
        yield
    finally:
        _is_uncut.reset(token)


def screen_width() -> int | None:
    """The columns there are; None if nothing is to be cut."""
    return None if _is_uncut.get() else shutil.get_terminal_size().columns


def cut_middle(text: str, width: int) -> str:
    """A text that fits: the end of a name says most, the beginning where it belongs.

    >>> cut_middle("model/transformer/layers/11/attention/softmax:0", 28)
    'model/tra…ttention/softmax:0'
    """
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def fitted(rows: Sequence[Sequence[str]], width: int | None, gap: int = 2) -> list[list[str]]:
    """Rows of a table whose cells are cut so that it is no wider than this: the widest columns first, names
    before texts.

    >>> fitted([["7", "model/transformer/layers/11/attention/softmax:0"]], 30)
    [['7', 'model/tr…ttention/softmax:0']]
    """
    texts = [list(row) for row in rows]
    if width is None or not texts:
        return texts
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    over = sum(widths) + gap * (len(widths) - 1) - width
    names = [i for i in range(len(widths)) if not any(" " in row[i] for row in texts)]
    for columns, least in ((names, _ENOUGH), (range(len(widths)), _LEAST)):
        while over > 0 and (wide := [i for i in columns if widths[i] > least]):
            widths[max(wide, key=lambda i: widths[i])] -= 1
            over -= 1
    return [[cut_middle(cell, width) for cell, width in zip(row, widths, strict=True)] for row in texts]


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
        columns = width or screen_width()
        self._room = columns
        self.width = width or max(40, min(columns or _MOST_COLUMNS, _MOST_COLUMNS))
        self._lines: list[list[Piece]] = []

    def line(self, *pieces: Piece) -> None:
        """One line as it is; an empty one without arguments."""
        self._lines.append(list(pieces))

    def row(self, *pieces: Piece) -> None:
        """One line of names and words; while it is too long, its longest piece loses its middle."""
        cut = list(pieces)
        for _ in pieces:
            over = 0 if self._room is None else sum(len(_text(piece)) for piece in cut) - self._room
            longest = max(range(len(cut)), key=lambda i: len(_text(cut[i]).strip(" │├└─")))
            text = _text(cut[longest])
            if over <= 0 or len(text) <= _LEAST:
                break
            cut[longest] = (cut_middle(text, max(len(text) - over, _LEAST)), _style(cut[longest]))
        self.line(*cut)

    def text(self, text: str, style: str = "", indent: int = 2) -> None:
        """A sentence, wrapped."""
        for part in self._wrapped(text, indent):
            self.line(" " * indent, (part, style))

    def field(self, label: str, text: str, style: str = "") -> None:
        """A sentence behind a label, wrapped."""
        for place, part in enumerate(self._wrapped(text, LABEL_WIDTH + 2) or [""]):
            self.line("  ", (f"{'' if place else label:<{LABEL_WIDTH}}", "dim"), (part, style))

    def columns(self, label: str, rows: Sequence[Sequence[Piece]]) -> None:
        """Aligned cells behind a label."""
        rows = self._fitted(rows, LABEL_WIDTH + 2)
        widths = [max(len(_text(row[i])) for row in rows) for i in range(len(rows[0]))] if rows else []
        for place, row in enumerate(rows):
            cells: list[Piece] = []
            for cell, width in zip(row[:-1], widths, strict=False):
                cells.append((f"{_text(cell):<{width}}  ", _style(cell)))
            self.line("  ", (f"{'' if place else label:<{LABEL_WIDTH}}", "dim"), *cells, row[-1])

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[Piece]], right: Sequence[str] = ()
    ) -> None:
        """Columns with headings."""
        first: list[Piece] = [(heading, "dim") for heading in headings]
        rows = self._fitted([first, *rows], 0)
        widths = [max(len(_text(row[i])) for row in rows) for i in range(len(headings))]
        for row in rows:
            cells: list[Piece] = []
            for cell, width, heading in zip(row, widths, headings, strict=True):
                text = _text(cell)
                padded = text.rjust(width) if heading in right else text.ljust(width)
                cells += [(padded, _style(cell)), "  "]
            self.line(*cells[:-2], row[-1])

    def code(self, text: str, style: str = "") -> None:
        """A line of a program, cut where the page ends."""
        room = None if self._room is None else max(self._room - LABEL_WIDTH - 4, 20)
        shown = text if room is None or len(text) <= room else f"{text[: room - 1]}…"
        self.line("  ", " " * LABEL_WIDTH, ("│ ", "dim"), (shown, style))

    def command(self, label: str, words: Sequence[str], style: str = "cyan") -> None:
        """A command to be typed; one that is too long goes on in the next line, as a shell reads it."""
        room = None if self._room is None else max(self._room - LABEL_WIDTH - 2, 20)
        lines = [""]
        for word in words:
            longer = f"{lines[-1]} {word}".lstrip()
            if room is not None and lines[-1].strip() and len(longer) + 2 > room:
                lines.append(f"  {word}")
            else:
                lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
        for place, line in enumerate(lines):
            more = " \\" if place < len(lines) - 1 else ""
            self.line("  ", (f"{'' if place else label:<{LABEL_WIDTH}}", "dim"), (line + more, style))

    def _fitted(self, rows: Sequence[Sequence[Piece]], indent: int) -> list[list[Piece]]:
        width = None if self._room is None else max(self._room - indent, 20)
        texts = fitted([[_text(cell) for cell in row] for row in rows], width)
        return [
            [text if isinstance(cell, str) else (text, cell[1]) for text, cell in zip(cut, row, strict=True)]
            for cut, row in zip(texts, rows, strict=True)
        ]

    def _wrapped(self, text: str, indent: int) -> list[str]:
        room = max(self.width - indent, 20)
        if self._room is not None:
            text = " ".join(cut_middle(word, room) for word in text.split(" "))
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)

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
