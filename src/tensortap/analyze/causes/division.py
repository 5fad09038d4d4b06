"""Divisions by zero, or by almost nothing."""

from __future__ import annotations

import math

from tensortap.analyze.case import Case
from tensortap.analyze.causes.overflow import infinite_factor
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause
from tensortap.analyze.health import Health, number_text

__all__ = ["division"]


def division(case: Case) -> Cause | None:
    """A divisor that is zero, or so small that the quotient overflows."""
    if case.forward_op in ("sqrt", "norm", "log", "acos", "asin", "pow", "rsqrt"):
        return None
    divisor = case.operation.place_of("divisor", 1)
    has_dividend = "dividend" in case.operation.inputs
    top, bottom = case.part("dividend") if has_dividend else None, case.health(divisor)
    is_number = len(case.arguments) <= divisor
    constant = case.number("divisor") if is_number else None
    if constant is not None:
        if constant == 0:
            return Cause("division-by-zero", "Division by the constant 0.")
        return None
    if is_number and case.varies("divisor") and top is not None and not top.is_bad:
        return Cause(
            "division-by-zero",
            f"Division by a number that was 0 or very close to it: it differs from run to run, and what it divides "
            f"reaches {number_text(top.magnitude)}.",
            advice="Look at how this number is worked out.",
        )
    if case.op == "addcdiv" and _is_beyond_reach(case, top, bottom):
        return infinite_factor(case)
    if bottom is None or not bottom.finite:
        return None
    name = case.named(divisor)
    if bottom.zero and (case.out.nan or case.out.infinities):
        if case.finding.phase == "optimizer" and (case.op == "addcdiv" or _is_root(case, divisor)):
            return _small_epsilon(case, bottom)
        both = top is not None and top.zero and case.out.nan
        zeros = (
            f"the divisor {name} is zero"
            if bottom.elements == 1
            else f"{count(bottom.zero, bottom.elements, 'zero')} in the divisor {name}"
        )
        return Cause(
            "division-by-zero",
            f"Division by zero{' (0/0)' if both else ''}: {zeros}.",
            advice="Add a small epsilon to the divisor, or divide only where it is not zero.",
        )
    if case.out.infinities:
        smallest = "" if top is None else f" of numbers up to {number_text(top.magnitude)}"
        return Cause(
            "overflow",
            f"Division{smallest} by numbers close to zero exceeds what {case.dtype} can hold "
            f"({number_text(case.largest)}); the divisor {name} holds {bottom.spread}.",
        )
    return None


def _is_beyond_reach(case: Case, top: Health | None, bottom: Health | None) -> bool:
    """Whether a quotient of good numbers is too small to overflow, so that its factor must have done it."""
    if top is None or bottom is None or not bottom.finite or bottom.min <= 0 or top.is_bad:
        return False
    return top.magnitude / bottom.min < math.sqrt(case.largest)


def _is_root(case: Case, place: int) -> bool:
    """Whether an input is a root, or a root and a little more."""
    return case.maker_of(case.arguments[place]) in ("sqrt", "add")


def _small_epsilon(case: Case, bottom: Health) -> Cause:
    low = case.dtype == "float16"
    return Cause(
        "epsilon-too-small",
        f"The optimizer divides by zero: {count(bottom.zero, bottom.elements, 'zero')} in {case.arguments[-1]}, the "
        "root of the squared gradients plus epsilon"
        + ("; an epsilon below 6e-08 is zero in float16." if low else ", so epsilon is 0 or too small."),
        advice="Raise eps (1e-4 for float16), or keep the optimizer's state in float32.",
    )
