"""The answer for a screen that lays it out itself: the words of `tensortap why`, in blocks instead of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensortap.analyze.findings import Report
from tensortap.report.answer import answer, short_path
from tensortap.report.page import Page, Piece

__all__ = ["Card", "card_of", "links_of"]

_LINKED = 500
"""Tensors that a value has spread to and that can be followed from the card."""


class Card(Page):
    """Takes what a page takes, and keeps it unwrapped and uncut.

    >>> card = Card()
    >>> card.field("cause", "a logarithm of zero", "bold")
    >>> card.blocks
    [{'kind': 'field', 'label': 'cause', 'rows': [[{'text': 'a logarithm of zero', 'style': 'bold'}]]}]
    """

    def __init__(self) -> None:
        super().__init__(110)
        self.blocks: list[dict[str, Any]] = []

    def line(self, *pieces: Piece) -> None:
        """One line; an empty one is a gap."""
        self._add("line" if pieces else "gap", "", [pieces] if pieces else [])

    def row(self, *pieces: Piece) -> None:
        """One line."""
        self.line(*pieces)

    def text(self, text: str, style: str = "", indent: int = 2) -> None:
        """A sentence."""
        self._add("text", "", [[(text, style)]])

    def field(self, label: str, text: str, style: str = "") -> None:
        """A sentence behind a label."""
        self._add("field", label, [[(text, style)]])

    def columns(self, label: str, rows: Sequence[Sequence[Piece]]) -> None:
        """Cells behind a label."""
        self._add("columns", label, rows)

    def code(self, text: str, style: str = "") -> None:
        """A line of a program."""
        self._add("code", "", [[(text, style)]])

    def command(self, label: str, words: Sequence[str], style: str = "cyan") -> None:
        """A command to be typed."""
        self._add("command", label, [[(" ".join(words), style)]])

    def _add(self, kind: str, label: str, rows: Sequence[Sequence[Piece]]) -> None:
        cells = [[_cell(piece) for piece in row] for row in rows]
        self.blocks.append({"kind": kind, "label": label, "rows": cells})


def card_of(report: Report) -> list[dict[str, Any]]:
    """The blocks of a report's answer."""
    card = Card()
    answer(report, page=card)
    return card.blocks


def links_of(report: Report) -> dict[str, dict[str, Any]]:
    """Where the names on the card lead: tensors, nodes and source lines, by their text."""
    links: dict[str, dict[str, Any]] = {}
    for single in report.reports:
        for finding in single.findings:
            run = {"run": str(finding.run), "rank": finding.rank}
            tensors = [
                finding.tensor,
                *(each.tensor for each in finding.inputs),
                *finding.propagators[:_LINKED],
            ]
            for tensor in tensors:
                links.setdefault(tensor, {"kind": "tensor", "name": tensor, **run})
            links.setdefault(finding.node.name, {"kind": "node", "name": finding.node.name, **run})
            for frame in (finding.source, finding.node.own_source):
                if frame is not None:
                    where = f"{short_path(frame.file)}:{frame.line}"
                    links.setdefault(where, {"kind": "source", "name": frame.file, "line": frame.line, **run})
    return links


def _cell(piece: Piece) -> dict[str, str]:
    text, style = (piece, "") if isinstance(piece, str) else piece
    return {"text": text, "style": style}
