"""`tensortap source`: which lines the nodes of a run come from."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_output_arguments,
    add_run_arguments,
    open_run,
    print_json,
    print_table,
    say,
)
from tensortap.errors import NotThereError

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.analyze.lines import SourceFile
    from tensortap.reader import DebugDumpDir

HELP = "show the program with the nodes each line made"
DESCRIPTION = """Show which lines of the program the nodes of a run come from.

  tensortap source dumps              the files
  tensortap source dumps model.py     its lines that made nodes, bad ones marked
  tensortap source dumps model.py:31  the nodes of one line and their health
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument("file", metavar="FILE[:LINE]", nargs="?", help="a file, or the end of its path")
    parser.add_argument("-a", "--all", action="store_true", help="print all lines of the file")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.analyze.lines import find_file, source_files

    dump = open_run(options)
    facts = facts_of_dump(dump)
    files = source_files(facts)
    if not files:
        raise NotThereError("No source lines were stored with this run.")
    if options.file is None:
        return _list_files(files, options.json)
    match = re.fullmatch(r"(.*?)(?::(\d+))?", options.file)
    assert match is not None
    file = find_file(files, match[1])
    if match[2] is not None:
        return _show_line(facts, file, int(match[2]), options.json)
    _show_file(facts, dump, file, options)
    say(facts.notices)
    return 0


def _list_files(files: list[SourceFile], as_json: bool) -> int:
    from tensortap.report.answer import short_path

    if as_json:
        print_json(
            [
                {"file": each.path, "lines": len(each.lines), "nodes": each.nodes, "bad": each.bad}
                for each in files
            ]
        )
        return 0
    print_table(
        ("nodes", "lines", "bad", "file"),
        [(each.nodes, len(each.lines), each.bad or "-", short_path(each.path)) for each in files],
        right=("nodes", "lines", "bad"),
    )
    return 0


def _described(facts: RunFacts, file: SourceFile, line: int) -> list[dict[str, Any]]:
    found = []
    for node in file.lines.get(line, ()):
        health = facts.health(node.tensor(0))
        found.append(
            {
                "node": node.name,
                "op_type": node.op_type,
                "health": None if health is None else health.as_dict(),
            }
        )
    return found


def _show_line(facts: RunFacts, file: SourceFile, line: int, as_json: bool) -> int:
    from tensortap.records import Frame
    from tensortap.report.answer import short_path
    from tensortap.report.page import Page, Piece
    from tensortap.report.words import health_piece

    if line not in file.lines:
        near = sorted(file.lines, key=lambda each: abs(each - line))[:3]
        raise NotThereError(
            f"Line {line} made no node in run {facts.info.index}; lines {', '.join(map(str, sorted(near)))} did. "
            "-r N asks about another run."
        )
    if as_json:
        print_json({"file": file.path, "line": line, "nodes": _described(facts, file, line)})
        return 0
    page = Page()
    text = facts.source_line(Frame(file.path, line, ""))
    page.row((f"{short_path(file.path)}:{line}", "bold"))
    if text:
        page.row("  ", (text, "yellow"))
    page.line()
    rows: list[list[Piece]] = [
        [n.name, (n.op_type, "cyan"), health_piece(facts.health_behind(n.tensor(0)))]
        for n in file.lines[line]
    ]
    page.columns("nodes", rows)
    page.show()
    return 0


def _show_file(facts: RunFacts, dump: DebugDumpDir, file: SourceFile, options: argparse.Namespace) -> None:
    from tensortap.analyze.lines import is_bad
    from tensortap.report.answer import short_path
    from tensortap.report.page import Page

    try:
        text = dump.source_text(file.path).splitlines()
    except (KeyError, OSError, ValueError):
        text = []
    if options.json:
        lines = {str(line): _described(facts, file, line) for line in sorted(file.lines)}
        print_json({"file": file.path, "lines": lines, "is_stored": bool(text)})
        return
    page = Page()
    page.row((short_path(file.path), "bold"), "" if text else "  (its text was not stored)")
    numbers = range(1, len(text) + 1) if options.all and text else sorted(file.lines)
    last = 0
    for number in numbers:
        nodes = file.lines.get(number, [])
        bad = sum(is_bad(facts, node) for node in nodes)
        if last and number != last + 1:
            page.line(("   …", "dim"))
        last = number
        said = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}" if nodes else ""
        mark = ("✗", "bold red") if bad else " "
        shown = text[number - 1].rstrip() if number <= len(text) else ""
        page.row(
            mark, f"{number:>5}  ", (f"{said:>9}", "dim"), ("  │ ", "dim"), (shown, "red" if bad else "")
        )
    page.show()
