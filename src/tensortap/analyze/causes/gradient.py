"""Gradients that do not exist where the input is."""

from __future__ import annotations

from dataclasses import replace

from tensortap.analyze.case import Case
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause

__all__ = ["equal_values", "gradient_at_zero", "with_hiding"]


def equal_values(case: Case) -> Cause | None:
    """Gradients of decompositions divide by the differences of singular or eigen values."""
    names = {"singular_values": "singular values", "eigenvalues": "eigenvalues"}
    forward = case.forward_op
    if forward not in names or not case.out.is_bad:
        return None
    return Cause(
        f"equal-{names[forward].replace(' ', '-')}",
        f"The gradient of {case.forward_word} divides by the differences of its {names[forward]}, and some of them are "
        "equal.",
        advice="Avoid gradients through the vectors, or add noise so that the matrix has distinct values.",
    )


def gradient_at_zero(case: Case) -> Cause | None:
    """Gradients with a division by something that is zero where the function has no slope."""
    forward = case.forward_op
    stories = {
        "sqrt": ("sqrt-gradient-at-zero", "The gradient of sqrt is infinite at 0"),
        "rsqrt": ("rsqrt-gradient-at-zero", "The gradient of rsqrt is infinite at 0"),
        "log": ("log-gradient-at-zero", "The gradient of log is infinite at 0"),
        "log1p": ("log-gradient-at-zero", "The gradient of log1p is infinite at −1"),
        "norm": ("norm-of-zero", "The gradient of a norm is not defined for a vector of zeros"),
        "distance": ("norm-of-zero", "The gradient of a distance is not defined between equal points"),
        "std": (
            "std-of-constant",
            "The gradient of a standard deviation is not defined where all values are equal",
        ),
        "std_mean": (
            "std-of-constant",
            "The gradient of a standard deviation is not defined where all values are equal",
        ),
        "pow": ("power-gradient-at-zero", "The gradient of this power is infinite at 0"),
        "div": ("division-by-zero", "The gradient of a division is infinite where the divisor is 0"),
        "acos": ("acos-gradient-at-one", "The gradient of acos is infinite at ±1"),
        "asin": ("asin-gradient-at-one", "The gradient of asin is infinite at ±1"),
        "acosh": ("acosh-gradient-at-one", "The gradient of acosh is infinite at 1"),
        "atanh": ("atanh-gradient-at-one", "The gradient of atanh is infinite at ±1"),
    }
    if forward not in stories or not case.out.is_bad or (forward == "div" and case.op != "pow"):
        return None
    zeros = [
        (tensor.tensor, tensor.health)
        for tensor in case.inputs
        if tensor.health is not None and tensor.health.zero and tensor.tensor != case.name_of("arriving")
    ]
    if case.op in ("reciprocal", "rsqrt", "pow") and case.inputs and case.inputs[0].health is not None:
        zeros = [(case.inputs[0].tensor, case.inputs[0].health)] if case.inputs[0].health.zero else []
    if not zeros and case.op != "mul":
        return None
    kind, sentence = stories[forward]
    behind = case.forward_input
    if behind is not None and behind[1].zero and forward != "div":  # whose first input is what is divided
        zeros = [(f"its input {behind[0]}", behind[1])]
    if zeros:
        name, health = zeros[0]
        sentence += f", and {count(health.zero, health.elements, 'zero')} in {name}"
    first = case.part("arriving")
    if first is not None and first.zero and case.out.nan:
        sentence += "; the gradient that arrives there is 0, and 0/0 is NaN"
    advice = f"Add a small epsilon inside, or give {case.api('where')} a safe value in both branches."
    return Cause(kind, sentence + ".", advice=advice)


_SAFE = {"acos": "0.0", "asin": "0.0", "atanh": "0.0", "acosh": "2.0", "exp": "0.0", "expm1": "0.0"}
"""What can be given to an operation without harm, where 1.0 cannot."""


def with_hiding(cause: Cause, case: Case) -> Cause:
    """The cause, and that what it speaks of was not meant to be used: a choice hides it, but not its gradient."""
    if not case.has_api("double_where") or not case.is_hidden:
        return cause
    op, word = case.forward_op or case.op, case.forward_word or case.word
    remedy = case.api("double_where").format(safe=_SAFE.get(op, "1.0"))
    return replace(
        cause,
        sentence=f"{cause.sentence.rstrip('.')}; {case.api('where')} hides the value there, but not its gradient.",
        advice=f"Give {word} a safe value where its result is not wanted, inside and outside: {remedy}.",
    )
