"""One place says what a health pill is: the header for C agrees with it, and so does whoever makes or reads pills."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tensortap
from tensortap import pill
from tensortap.analyze.health import Health
from tensortap.ops import kernel, numpy_kernel
from tensortap.ops.view import TensorView
from tensortap.records import Record

INF, NAN = np.inf, np.nan
PACKAGE = Path(tensortap.__file__).parent


def names_of(enum, header):
    body = re.search(rf"enum {enum} {{(.*?)}}", header, re.DOTALL)[1]
    return [name.strip() for name in body.split(",")]


def test_the_header_for_c_has_the_columns_and_kinds_of_the_module():
    header = pill.C_HEADER.read_text()
    columns = names_of("PillColumn", header)
    assert columns == [*(f"PILL_{name.upper()}" for name in pill.PILL_COLUMNS), "PILL_SIZE"]
    kinds = dict(name.split(" = ") for name in names_of("PillKind", header))
    assert {name: int(value) for name, value in kinds.items()} == {
        name: getattr(pill, name) for name in ("KIND_NAN", "KIND_NEG_INF", "KIND_POS_INF")
    }


def test_columns_stand_where_their_names_say():
    for place, name in enumerate(pill.PILL_COLUMNS):
        assert getattr(pill, name.upper()) == place
    assert [name.replace("dtype_number", "dtype") for name in Health._fields[: pill.PILL_SIZE]] == list(
        pill.PILL_COLUMNS
    )


VALUES = {
    (): [1.0, -2.0, 0.0],
    ("nan",): [1.0, NAN],
    ("neg_inf",): [-INF, 2.0, -INF],
    ("pos_inf",): [INF],
    ("nan", "neg_inf", "pos_inf"): [NAN, -INF, INF, 0.0],
}
BITS = {"nan": pill.KIND_NAN, "neg_inf": pill.KIND_NEG_INF, "pos_inf": pill.KIND_POS_INF}


@pytest.mark.parametrize("kinds", VALUES, ids="+".join)
def test_everybody_finds_the_same_kinds_in_a_value(kinds):
    value = np.array(VALUES[kinds], np.float32)
    expected = sum(BITS[kind] for kind in kinds)
    rows = np.stack([kernel.summary(value), numpy_kernel.summary(TensorView.of_numpy(value), -INF, INF)])
    assert [pill.kinds_of(row) for row in rows] == [expected, expected]
    assert pill.kinds_of_all(rows).tolist() == [expected, expected]
    assert pill.are_bad(rows).tolist() == [pill.is_bad(row) for row in rows] == [bool(kinds)] * 2
    assert pill.are_healthy(rows).tolist() == [pill.is_healthy(row) for row in rows] == [not kinds] * 2
    whole = Record("x", 0, "DebugIdentity", "", 1, "float32", value.shape, value)
    summary = Record("x", 0, pill.PILL_OP, "", 1, "float64", rows[0].shape, rows[0])
    assert pill.kinds_of_record(whole) == pill.kinds_of_record(summary) == expected
    assert Health.of_value(value).is_bad is Health.of_pill(rows[0]).is_bad is bool(kinds)


def test_what_nobody_looked_at_is_neither_bad_nor_healthy():
    row = numpy_kernel.unread_summary(TensorView(0, "float32", (3,), (1,)))
    assert not pill.is_bad(row)
    assert not pill.is_healthy(row)
    integers = numpy_kernel.unread_summary(TensorView(0, "int64", (3,), (1,)))
    assert pill.are_unread(np.stack([row, integers])).tolist() == [True, False]


def test_what_is_no_pill_tells_of_nothing():
    short = Record("x", 0, pill.PILL_OP, "", 1, "float64", (3,), np.array([1.0, NAN, INF]))
    assert pill.pill_of(short) is None
    assert pill.kinds_of_record(short) == 0
    digest = Record("x", 0, pill.HASH_OP, "", 1, "uint8", (16,), bytes(16))
    assert pill.kinds_of_record(digest) == 0


def test_no_other_file_spells_the_layout():
    """Index literals into pills were written in eleven files once, and two of them had begun to differ."""
    spelled = re.compile(r"\(2, 3, 7\)|\b(?:pill|summary)\[\d|\bHEADER\b|<14d")
    sources = [
        *PACKAGE.rglob("*.py"),
        *PACKAGE.rglob("*.h"),
        *PACKAGE.rglob("*.cpp"),
        *PACKAGE.parents[1].glob("native/*.c"),
    ]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sources
        if path.name not in ("pill.py", "pill.h")
        for line in path.read_text().splitlines()
        if spelled.search(line) and ">>>" not in line
    ]
    assert found == []
