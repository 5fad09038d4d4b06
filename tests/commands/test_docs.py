"""What the pages about commands say can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tensortap.commands import COMMANDS, parser_of
from tests.analyze.planted import PLANTS, train

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("commands.md", "first-bad.md")


def test_every_command_is_on_the_page():
    page = (DOCS / "commands.md").read_text()
    table = page[page.index("| command |") : page.index("A directory is")]
    assert set(re.findall(r"`(\w+)`", table)) >= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES)
def test_every_example_is_understood(page):
    """The lines of the pages, and those of the help."""
    parser = parser_of()
    lines = re.findall(r"^ +(?:\$ )?tensortap (.*)$", (DOCS / page).read_text(), flags=re.MULTILINE)
    assert lines
    for line in lines:
        parser.parse_args(shlex.split(line))


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    case = next(case for case in PLANTS if case.name == "log_of_zero")
    train(case, tmp_path / "dumps")
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "first-bad.md").read_text(), flags=re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out.startswith("model/log model ")


def test_the_examples_of_help_are_understood():
    parser = parser_of()
    choices = next(action.choices for action in parser._actions if action.choices)
    for name in ("why", "health", "node", "inputs", "outputs", "source", "eval", "diff", "history", "find"):
        lines = re.findall(r"^  tensortap (.*?)(?:   .*)?$", choices[name].description, flags=re.MULTILINE)
        assert lines
        for line in lines:
            typed = re.sub(r"  +[^'`-].*$", "", line).split(" | ")[0]
            parser.parse_args(shlex.split(typed))
