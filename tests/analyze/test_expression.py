"""Expressions are worked out, and nothing else is (X17)."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.analyze.expression import Expression, ExpressionError, TensorReference, parse_reference
from tensortap.analyze.filters import condition_of
from tensortap.analyze.health import Health
from tests.patience import patient

TENSORS = {
    "fc/addmm:0": np.arange(12.0).reshape(3, 4),
    "big:0": np.zeros((100_000, 1)),
    "half:0": np.array([1.5, 2.5], ml_dtypes.bfloat16),
}


def evaluate(text):
    return Expression(text).evaluate(TENSORS.__getitem__)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("np.mean(`fc/addmm:0`[0])", 1.5),
        ("`fc/addmm:0`[-1, ::2]", [8, 10]),
        ("`fc/addmm:0`[..., None].shape", (3, 4, 1)),
        ("  `fc/addmm:0`.max(-1) > 3 ", [False, True, True]),
        ("np.where(`fc/addmm:0` > 10, 1, 0).sum()", 1),
        ("np.linalg.norm(`fc/addmm:0`[0])", 14**0.5),
        ("`fc/addmm:0` @ `fc/addmm:0`.T == np.matmul(`fc/addmm:0`, `fc/addmm:0`.T)", [[True] * 3] * 3),
        ("1 < np.std(`fc/addmm:0`) < 5", True),
        ("max(1, 2) if np.any(np.isnan(`fc/addmm:0`)) else -np.inf", -np.inf),
        ("np.concatenate([`fc/addmm:0`[0], `fc/addmm:0`[1]]).size", 8),
        ("np.percentile(`fc/addmm:0`, [0, 100])", [0, 11]),
        ("`half:0` * 2", [3, 5]),
        ("`fc/addmm:0`.astype(np.int32).sum(axis=0)", [12, 15, 18, 21]),
        ("2 ** 10 - ~0", 1025),
        ("np.log(`fc/addmm:0`[0, 0])", -np.inf),
    ],
)
def test_what_people_ask(text, result):
    np.testing.assert_array_equal(evaluate(text), result)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__[0].__subclasses__()",
        "`fc/addmm:0`.__class__",
        "`fc/addmm:0`.tofile('/tmp/x')",
        "`fc/addmm:0`.dump('/tmp/x')",
        "np.load('/etc/passwd')",
        "np.save('/tmp/x', `fc/addmm:0`)",
        "np.lib.npyio.format",
        "np.ctypeslib",
        "np.fromfile(3)",
        "np.apply_along_axis(print, 0, `fc/addmm:0`)",
        "np.sum(`fc/addmm:0`, out=`fc/addmm:0`)",
        "(lambda: 1)()",
        "[x for x in `fc/addmm:0`]",
        "{1: 2}",
        "f'{1}'",
        "'text'",
        "x := 1",
        "open('/etc/passwd')",
        "eval('1')",
        "_tensor_5",
        "np",
        "print",
        "`fc/addmm:0",
        "1 +",
        "",
        "1; 2",
        "np.mean(*[1])",
        "np.mean(**{})",
        "10 ** 10 ** 10",
        "[0] * 1000000000",
        "`big:0` * np.transpose(`big:0`)",
        "`big:0` @ `big:0`.T",
        "np.add(`big:0`, `big:0`.T)",
        "np.histogram(`fc/addmm:0`, bins=10000000)",
        "np.histogram(`fc/addmm:0`, 10000000)",
        "np.percentile(`fc/addmm:0`, `big:0`)",
        "np.diag(`big:0`.ravel())",
        "np.diff(`big:0`, 10000)",
        "`fc/addmm:0`[`big:0`.astype(np.int64).ravel()][:, :, None] * `big:0`.T",
        "np.linalg.inv(`big:0`)",
        "(" * 500 + "1" + ")" * 500,
        "-" * 1500 + "1",
        "1 if 1 else " * 150 + "1",
    ],
)
def test_everything_else_is_refused_in_one_line(text):
    started = time.monotonic()
    with pytest.raises(ExpressionError) as error:
        evaluate(text)
    assert "\n" not in str(error.value)
    assert time.monotonic() - started < patient(1)


def test_mistakes_are_explained():
    with pytest.raises(ExpressionError, match=r"np\.meen is not allowed\. Did you mean 'mean'"):
        evaluate("np.meen(`fc/addmm:0`)")
    with pytest.raises(ExpressionError, match="cannot be worked out: index 7 is out of bounds"):
        evaluate("`fc/addmm:0`[7]")
    with pytest.raises(ExpressionError, match="Write tensors in `back-ticks`"):
        evaluate("fc + 1")


@given(st.text(alphabet="`np.mean()[]:0123456789+-*/<>=, abcxyz_'\"@~|&", max_size=60))
def test_any_text_gives_a_value_or_an_error(text):
    try:
        evaluate(text)
    except (ExpressionError, KeyError):
        pass  # KeyError: a name that TENSORS does not have


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
    )
)
def test_arithmetic_agrees_with_python(text):
    assert Expression(text).evaluate(TENSORS.__getitem__) == eval(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a/b:1", TensorReference("a/b", 1)),
        ("a", TensorReference("a", 0)),
        ("a:0:DebugNanCount", TensorReference("a", 0, "DebugNanCount")),
        ("a:0[2]", TensorReference("a", 0, None, 2)),
        (
            "/job:localhost/replica:0/task:1/device:CPU:0:a/b:0:DebugIdentity[0]",
            TensorReference("a/b", 0, "DebugIdentity", 0, "/job:localhost/replica:0/task:1/device:CPU:0"),
        ),
    ],
)
def test_references(text, parts):
    assert parse_reference(text) == parts


def test_conditions_over_pills():
    health = Health.of_value(np.array([0.0, 0.0, -3.0, np.nan, np.inf]))
    for text, holds in {
        "nan": True,
        "inf == 1 and zero / elements > 0.3": True,
        "magnitude > 3": False,
        "magnitude >= 3 and min == -3": True,
        "not nan or rank == 1": True,
        "std > 1": True,
    }.items():
        assert condition_of(text)(health) is holds, text
    with pytest.raises(ExpressionError, match="Did you mean 'magnitude'"):
        condition_of("magnitud > 1")
