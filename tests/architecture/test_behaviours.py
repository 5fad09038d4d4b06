"""Every number that a comment or a docstring cites is explained in docs/behaviours.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FILES = sorted(path for part in ("src", "tests") for path in (REPOSITORY / part).rglob("*.py"))
NUMBER = re.compile(r"\b([A-HX])(\d+)\b")
RANGE = re.compile(r"\b([A-HX])(\d+)(?:–|-| to )\1(\d+)\b")
LINTER = re.compile(r"#\s*noqa.*|\b[Tt]ype: ignore.*")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def prose_of(path):
    """Comments and docstrings of a file."""
    text = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield LINTER.sub("", token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node) or ""


def cited(text):
    for group, first, last in RANGE.findall(text):
        yield from (f"{group}{number}" for number in range(int(first), int(last) + 1))
    for group, number in NUMBER.findall(text):
        yield f"{group}{number}"


def listed():
    return re.findall(r"^- ([A-HX]\d+): ", (REPOSITORY / "docs" / "behaviours.md").read_text(), re.MULTILINE)


def test_every_number_that_is_cited_is_explained():
    explained = set(listed())
    where = {
        number: str(path.relative_to(REPOSITORY))
        for path in FILES
        for text in prose_of(path)
        for number in cited(text)
    }
    assert len(where) > 200
    assert not {number: file for number, file in where.items() if number not in explained}


def test_numbers_are_in_order_and_stand_for_one_thing():
    numbers = [(number[0], int(number[1:])) for number in listed()]
    assert numbers == sorted(set(numbers))


def test_lines_refer_to_lines_that_exist():
    text = (REPOSITORY / "docs" / "behaviours.md").read_text()
    assert set(cited(text)) == set(listed())
