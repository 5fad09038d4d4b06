"""One sentence of cause for every operation that can go wrong, whichever engine names it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensortap.analyze.facts import RunFacts
from tensortap.analyze.first_bad import first_bad
from tensortap.analyze.health import Health
from tensortap.records import Node, RunInfo, TensorSpec

NAN, INF = np.nan, np.inf
HALF, BRAIN = np.float16, ml_dtypes.bfloat16


def explained(op_type, output, *inputs, name="model/f", forward=None, values=False, **attributes):
    """The cause of a node's bad output."""
    arrays = {f"in{place}:0": np.asarray(value) for place, value in enumerate(inputs)}
    arrays[f"{name}:0"] = np.asarray(output)
    nodes = {each[:-2]: Node(each[:-2], "aten::relu") for each in list(arrays)[:-1]}
    spec = TensorSpec(str(arrays[f"{name}:0"].dtype), arrays[f"{name}:0"].shape)
    nodes[name] = Node(
        name, op_type, tuple(list(arrays)[:-1]), outputs=(spec,), attributes=attributes, forward=forward
    )
    healths = {each: Health.of_value(array) for each, array in arrays.items()}
    found = first_bad(
        RunFacts(RunInfo(0, 0, 0), nodes, healths, values=arrays.get if values else lambda tensor: None)
    )
    assert found.node.name == name
    return found.cause


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("log-of-zero", lambda: explained("aten::log", [-INF, 0.0], [0.0, 1.0])),
        ("log-of-zero", lambda: explained("Log", [-INF, 0.0], [0.0, 1.0])),
        ("log-of-negative", lambda: explained("log", [NAN, 0.0], [-1.0, 1.0])),
        ("log-of-zero", lambda: explained("aten::log1p", [-INF, 0.0], [-1.0, 0.0])),
        ("division-by-zero", lambda: explained("aten::div", [INF, 1.0], [1.0, 1.0], [0.0, 1.0])),
        ("division-by-zero", lambda: explained("RealDiv", [NAN, 1.0], [0.0, 1.0], [0.0, 1.0])),
        ("division-by-zero", lambda: explained("aten::div", [INF], [1.0], other=0)),
        ("division-by-zero", lambda: explained("aten::reciprocal", [INF], [0.0])),
        ("division-by-zero", lambda: explained("aten::rsqrt", [INF], [0.0])),
        (
            "overflow",
            lambda: explained(
                "aten::div", np.array([INF], HALF), np.array([6e4], HALF), np.array([1e-3], HALF)
            ),
        ),
        ("sqrt-of-negative", lambda: explained("aten::sqrt", [NAN, 1.0], [-1e-9, 1.0])),
        ("rsqrt-of-negative", lambda: explained("aten::rsqrt", [NAN, 1.0], [-1e-9, 1.0])),
        ("power-of-negative", lambda: explained("aten::pow", [NAN], [-2.0], exponent=0.5)),
        ("division-by-zero", lambda: explained("aten::pow", [INF], [0.0], exponent=-1.0)),
        ("acos-out-of-range", lambda: explained("aten::acos", [NAN], [1.0000001])),
        ("asin-out-of-range", lambda: explained("Asin", [NAN], [-2.0])),
        ("atanh-at-one", lambda: explained("aten::atanh", [INF], [1.0])),
        ("exp-overflow", lambda: explained("aten::exp", np.float32([INF]), np.float32([100.0]))),
        ("expm1-overflow", lambda: explained("aten::expm1", np.float32([INF]), np.float32([100.0]))),
        ("cast-overflow", lambda: explained("aten::_to_copy", np.array([INF], HALF), [1e5])),
        ("cast-overflow", lambda: explained("convert_element_type", np.array([INF], BRAIN), [3.4e38])),
        (
            "overflow",
            lambda: explained(
                "aten::mul", np.array([INF], HALF), np.array([300], HALF), np.array([300], HALF)
            ),
        ),
        ("overflow", lambda: explained("aten::sum", np.array(INF, HALF), np.full(4, 3e4, HALF))),
        (
            "overflow",
            lambda: explained(
                "aten::mm", np.array([[INF]], HALF), np.full((1, 9), 300, HALF), np.full((9, 1), 300, HALF)
            ),
        ),
        (
            "overflow",
            lambda: explained("dot_general", np.float32([[NAN]]), np.float32([[1e30]]), np.float32([[1e30]])),
        ),
        ("overflow", lambda: explained("aten::linalg_vector_norm", np.float32(INF), np.float32([1e30]))),
        ("variance-of-one", lambda: explained("aten::std", [NAN], [1.0])),
        ("mean-of-nothing", lambda: explained("aten::mean", NAN, np.zeros(0))),
        (
            "norm-of-zero",
            lambda: explained(
                "aten::div", [NAN], [0.0], [0.0], name="gradients/f/div", forward="linalg_vector_norm"
            ),
        ),
        (
            "log-gradient-at-zero",
            lambda: explained(
                "aten::div", [INF], [1.0], [0.0], name="gradients/model/log_2/div", forward="model/log_2"
            ),
        ),
        ("unknown", lambda: explained("mine::op", [NAN], [1.0])),
        ("unknown", lambda: explained("aten::relu", [NAN], [1.0])),
    ],
)
def test_kinds(kind, cause):
    assert cause().kind == kind


def test_the_numbers_that_prove_it():
    cause = explained("aten::sqrt", [NAN, NAN, 1.0], [-0.5, -0.25, 1.0], values=True)
    assert (
        cause.sentence
        == "sqrt of a negative number: 2 of 3 elements are negative in its input, down to -0.5."
    )
    assert cause.proof == ("The first bad element is [0]: nan, where in0:0 is -0.5.",)


def test_broadcast_inputs_are_shown_at_the_bad_element():
    cause = explained(
        "aten::div", [[1.0, INF], [2.0, INF]], [[1.0, 2.0], [2.0, 3.0]], [1.0, 0.0], values=True
    )
    assert cause.proof == ("The first bad element is [0, 1]: inf, where in0:0 is 2 and in1:0 is 0.",)


def test_honest_if_not_recognised():
    assert explained("aten::relu", [NAN], [1.0]).sentence == "The cause was not recognised."


def test_intended_infinities_that_meet():
    """A mask of −inf is meant; multiplying it by zero is not."""
    spec = (TensorSpec("float32", (2,)),)
    nodes = {
        "mask": Node("mask", "aten::full", outputs=spec, attributes={"fill_value": -INF}),
        "x": Node("x", "aten::relu", outputs=spec),
        "mul": Node("mul", "aten::mul", ("mask:0", "x:0"), outputs=spec),
    }
    values = {"mask:0": np.float32([-INF, -INF]), "x:0": np.float32([0, 1]), "mul:0": np.float32([NAN, -INF])}
    found = first_bad(RunFacts(RunInfo(0, 0, 0), nodes, {k: Health.of_value(v) for k, v in values.items()}))
    assert (found.node.name, found.cause.kind) == ("mul", "zero-times-infinity")
    assert [each.status for each in found.inputs] == ["intended", "good"]


def test_advice_that_would_not_help_is_not_given():
    cause = explained("aten::std", NAN, np.ones(1))
    assert cause.kind == "variance-of-one"
    assert "Use correction=0" not in cause.advice
    assert "gives NaN again unless an epsilon is added" in cause.advice


def test_a_divisor_that_is_one_number_is_called_so():
    cause = explained("aten::div", [INF, INF], [1.0, 2.0], 0.0)
    assert cause.sentence == "Division by zero: the divisor in1:0 is zero."
    assert "2 of 3 elements are zero" in explained("aten::div", [INF, INF, 1], [1, 1, 1], [0, 0, 1]).sentence
