"""Every kind of cause there is: a rule finds it, the documentation has it, and nothing else is told."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tensortap.analyze.causes import KINDS, RULES
from tensortap.analyze.explain import ALL_KINDS
from tensortap.analyze.facts import RunFacts
from tensortap.analyze.first_bad import first_bad
from tensortap.analyze.health import Health
from tensortap.analyze.vocabulary import VOCABULARIES, operation_of
from tensortap.pill import DTYPE, INITIALIZED, PILL_SIZE, RANK
from tensortap.records import Node, RunInfo

NAN, INF = np.nan, np.inf
DOCS = Path(__file__).parents[2] / "docs" / "first-bad.md"


class Made(NamedTuple):
    """A tensor, and the node that made it."""

    value: object
    op_type: str = "aten::relu"
    inputs: tuple[Made, ...] = ()
    attributes: dict[str, object] | None = None


def masked(*values):
    """A tensor with infinities that were put there on purpose."""
    worst = next(each for each in np.ravel(values) if np.isinf(each))
    return Made(np.array(values), "aten::masked_fill", attributes={"value": float(worst)})


def cause(op_type, output, *inputs, others=(), **node):
    """The cause of a node's first output, which is bad; `others` are its other outputs."""
    nodes, healths, numbers = {}, {}, itertools.count()

    def make(made, name, **facts):
        names = []
        for given in made.inputs:
            given = given if isinstance(given, Made) else Made(given)
            names.append(f"{make(given, f'in{next(numbers)}')}:0")
        nodes[name] = Node(name, made.op_type, tuple(names), attributes=made.attributes or {}, **facts)
        healths[f"{name}:0"] = (
            made.value if isinstance(made.value, Health) else Health.of_value(np.asarray(made.value))
        )
        return name

    arguments = node.pop("arguments", {})
    name = make(Made(output, op_type, inputs, arguments), node.pop("name", "model/f"), **node)
    for slot, value in enumerate(others, 1):
        healths[f"{name}:{slot}"] = Health.of_value(np.asarray(value))
    found = first_bad(RunFacts(RunInfo(0, 0, 0), nodes, healths))
    assert found.node.name == name
    return found.cause


def at_zero(forward):
    """A gradient that divides by what the operation it belongs to was given."""
    return cause("aten::div", [INF], [1.0], [0.0], name="gradients/model/g/div", forward=f"model/{forward}")


def unread():
    numbers = np.zeros(PILL_SIZE)
    numbers[[INITIALIZED, DTYPE, RANK]] = 0, 1, 1
    return Health.of_pill(np.append(numbers, 3.0))


def not_looked_at():
    nodes = {"strange": Node("strange", "aten::relu"), "x": Node("x", "Placeholder")}
    healths = {"strange:0": unread(), "x:0": Health.of_value(np.array([NAN]))}
    return first_bad(RunFacts(RunInfo(0, 0, 0), nodes, healths)).cause


def uninitialised():
    nodes = {"e": Node("e", "aten::empty"), "f": Node("f", "aten::add", ("e:0",))}
    healths = {name: Health.of_value(np.array([NAN])) for name in ("e:0", "f:0")}
    return first_bad(RunFacts(RunInfo(0, 0, 0), nodes, healths)).cause


def overwritten():
    nodes = {
        "x": Node("x", "aten::relu"),
        "w": Node("w", "aten::fill_", ("x:0",), attributes={"value": INF}),
        "f": Node("f", "mine::f", ("x:0",), control_inputs=("w",)),
    }
    values = {"x:0": [1.0, 1.0], "w:0": [INF], "f:0": [NAN, 1.0]}
    healths = {name: Health.of_value(np.array(value)) for name, value in values.items()}
    return first_bad(RunFacts(RunInfo(0, 0, 0), nodes, healths)).cause


LOG_PROBABILITIES = Made([-INF, 0.0], "aten::_log_softmax", (masked(-INF, 1.0),))
CASES = {
    # arrival
    "bad-input": lambda: cause("Placeholder", [NAN]),
    "not-looked-at": not_looked_at,
    "bad-parameter": lambda: cause("Variable", [NAN], phase="parameter"),
    "bad-state": lambda: cause("Variable", [NAN], phase="optimizer"),
    "received": lambda: cause("c10d::allreduce_", [NAN], [1.0]),
    "uninitialised": uninitialised,
    "overwritten": overwritten,
    # domain
    "log-of-negative": lambda: cause("aten::xlogy", [NAN], [-1.0], [-2.0]),
    "log-of-zero": lambda: cause("aten::log2", [-INF], [0.0]),
    "sqrt-of-negative": lambda: cause("aten::sqrt_", [NAN], [-1.0]),
    "rsqrt-of-negative": lambda: cause("aten::rsqrt", [NAN], [-1.0]),
    "power-of-negative": lambda: cause("aten::pow", [NAN], [-1.0], arguments={"exponent": 0.5}),
    "acos-out-of-range": lambda: cause("aten::arccos", [NAN], [2.0]),
    "asin-out-of-range": lambda: cause("aten::asin", [NAN], [2.0]),
    "acosh-out-of-range": lambda: cause("aten::acosh", [NAN], [0.5]),
    "atanh-out-of-range": lambda: cause("aten::atanh", [NAN], [2.0]),
    "erfinv-out-of-range": lambda: cause("aten::erfinv", [NAN], [2.0]),
    "logit-out-of-range": lambda: cause("aten::logit", [NAN], [-0.1]),
    "atanh-at-one": lambda: cause("aten::atanh", [INF], [1.0]),
    "erfinv-at-one": lambda: cause("aten::erfinv", [-INF], [-1.0]),
    "logit-at-the-edge": lambda: cause("aten::logit", [-INF], [0.0]),
    "lgamma-at-a-pole": lambda: cause("aten::lgamma", [INF], [0.0]),
    "digamma-at-a-pole": lambda: cause("aten::digamma", [NAN], [-1.0]),
    "polygamma-at-a-pole": lambda: cause("aten::polygamma", [INF], [-1.0]),
    "mvlgamma-at-a-pole": lambda: cause("aten::mvlgamma", [INF], [0.0]),
    # division
    "division-by-zero": lambda: cause("aten::div", [INF], [1.0], [0.0]),
    "epsilon-too-small": lambda: cause(
        "aten::addcdiv_", [INF], [1.0], [1.0], [0.0], phase="optimizer", writes=(0,)
    ),
    # gradient
    "equal-singular-values": lambda: at_zero("linalg_svd"),
    "equal-eigenvalues": lambda: at_zero("linalg_eigh"),
    "sqrt-gradient-at-zero": lambda: at_zero("sqrt"),
    "rsqrt-gradient-at-zero": lambda: at_zero("rsqrt"),
    "log-gradient-at-zero": lambda: at_zero("log_3"),
    "norm-of-zero": lambda: at_zero("linalg_vector_norm"),
    "std-of-constant": lambda: at_zero("std"),
    "power-gradient-at-zero": lambda: at_zero("pow"),
    "acos-gradient-at-one": lambda: at_zero("acos"),
    "asin-gradient-at-one": lambda: at_zero("asin"),
    "acosh-gradient-at-one": lambda: at_zero("acosh"),
    "atanh-gradient-at-one": lambda: at_zero("atanh"),
    # overflow
    "overflow": lambda: cause("aten::bmm", np.float32([[INF]]), np.float32([[1e30]]), np.float32([[1e30]])),
    "exp-overflow": lambda: cause("aten::exp", np.float32([INF]), np.float32([200.0])),
    "exp2-overflow": lambda: cause("aten::exp2", np.float32([INF]), np.float32([200.0])),
    "expm1-overflow": lambda: cause("aten::expm1", np.float32([INF]), np.float32([200.0])),
    "sinh-overflow": lambda: cause("aten::sinh", np.float32([INF]), np.float32([200.0])),
    "cosh-overflow": lambda: cause("aten::cosh", np.float32([INF]), np.float32([200.0])),
    "cast-overflow": lambda: cause("aten::copy_", np.float16([INF]), np.float16([0.0]), [1e5]),
    "infinite-learning-rate": lambda: cause(
        "aten::add_", [INF], [1.0], [1.0], arguments={"alpha": INF}, phase="optimizer", writes=(0,)
    ),
    "infinite-constant": lambda: cause("aten::mul", [NAN], [1.0], arguments={"other": NAN}),
    # infinities
    "zero-times-infinity": lambda: cause("aten::mul", [NAN, 0.0], masked(-INF, 0.0), [0.0, 0.0]),
    "infinity-minus-infinity": lambda: cause("aten::sub", [NAN, 0.0], masked(INF, 0.0), masked(INF, 0.0)),
    "masked-elements-used": lambda: cause("aten::sum", -INF, masked(-INF, 0.0)),
    "smoothed-masked-class": lambda: cause("aten::sum", -INF, LOG_PROBABILITIES),
    # attention
    "fully-masked-row": lambda: cause("aten::_softmax", [NAN, NAN], masked(-INF, -INF)),
    "softmax-of-infinity": lambda: cause("aten::_log_softmax", [NAN, 0.0], masked(INF, 0.0)),
    # indexing
    "index-out-of-bounds": lambda: cause(
        "gather", [NAN, 1.0], [1.0, 1.0], arguments={"mode": "FILL_OR_DROP"}
    ),
    # compiled
    "only-compiled": lambda: cause("executable", [NAN], arguments={"repeats": True}),
    "not-looked-inside": lambda: cause("executable", [NAN]),
    "not-repeated": lambda: cause("executable", [NAN], arguments={"repeats": False}),
    "arguments-donated": lambda: cause("executable", [NAN], arguments={"donated": True}),
    # reduction
    "masked-target": lambda: cause("aten::nll_loss_forward", INF, LOG_PROBABILITIES),
    "mean-of-nothing": lambda: cause("aten::mean", NAN, np.zeros(0)),
    "variance-of-one": lambda: cause("aten::var", NAN, [1.0]),
    "impossible-alignment": lambda: cause("aten::_ctc_loss", INF, [1.0]),
    # normalisation
    "negative-variance": lambda: cause(
        "aten::native_batch_norm", [NAN], [1.0], [1.0], [1.0], [1.0], [-1.0], others=([1.0], [1.0])
    ),
    "zero-variance": lambda: cause("aten::native_layer_norm", [NAN], [1.0], others=([1.0], [INF])),
    # matrices
    "singular-matrix": lambda: cause("aten::linalg_inv_ex", [[INF]], [[0.0]]),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_rule_tells_it(kind):
    assert CASES[kind]().kind == kind


def test_an_overflow_tells_of_the_numbers_that_overflow():
    large, weight, bias = np.float32([[1e35], [1e5], [0.25]])
    normalised = cause("aten::native_layer_norm", np.float32([NAN]), large, weight, bias)
    assert "numbers up to 1e+35 exceeds" in normalised.sentence
    convolved = cause("aten::convolution", np.float32([INF]), large, weight, bias)
    assert "numbers up to 1e+35 and 100000 exceeds" in convolved.sentence


def test_there_is_a_case_of_every_kind():
    assert set(CASES) == KINDS


def test_the_documentation_lists_every_kind():
    section = DOCS.read_text().partition("## Causes\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [kind for row in rows for kind in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == sorted(ALL_KINDS)


def test_rules_are_about_operations_that_a_vocabulary_can_name():
    """A rule for a name that every framework spells differently would never be asked."""
    hidden = set.intersection(*({*words.aliases, *words.canonical} for words in VOCABULARIES.values()))
    shown = {
        name
        for words in VOCABULARIES.values()
        for name in (*words.aliases.values(), *words.canonical.values())
    }
    for rule in RULES:
        assert not (rule.ops & hidden) - shown


@pytest.mark.parametrize(
    ("op_type", "engine", "name"),
    [
        ("aten::_softmax", "torch", "softmax"),
        ("aten::_foreach_div_", "torch", "div"),
        ("aten::scaled_dot_product_attention", "torch", "attention"),
        ("AccumulateGrad", "torch", "accumulate_grad"),
        ("RealDiv", "tensorflow", "div"),
        ("LogSoftmax", "tensorflow", "log_softmax"),
        ("dot_general", "jax", "mm"),
        ("RealDiv", "", "div"),
        ("convert_element_type", "", "to_copy"),
    ],
)
def test_each_framework_has_its_own_names(op_type, engine, name):
    assert operation_of(op_type, engine).name == name


def test_parts_are_found_by_what_they_do():
    assert operation_of("aten::addcdiv_").place_of("divisor") == 2
    assert operation_of("aten::reciprocal").place_of("divisor") == 0
    assert operation_of("aten::xlogy").place_of("log_of") == 1
    assert operation_of("c10d::allreduce_").communicates
    assert operation_of("aten::_foreach_add_").is_over_lists
