"""Numbers too large for their dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensortap.analyze.case import Case
from tensortap.analyze.causes.infinities import with_infinity
from tensortap.analyze.findings import Cause
from tensortap.analyze.health import Health, number_text

__all__ = [
    "cast",
    "elementwise",
    "exponential",
    "infinite_factor",
    "long_product",
    "overflow",
    "product",
    "scattered_sum",
    "squares",
]


def exponential(case: Case) -> Cause | None:
    """Exponentials of numbers that are too large."""
    given = case.health(0)
    if given is None or not case.out.pos_inf:
        return None
    limit = math.log(case.largest) if math.isfinite(case.largest) else 0
    limit = {"exp2": limit / math.log(2), "sinh": limit + math.log(2), "cosh": limit + math.log(2)}.get(
        case.op, limit
    )
    return Cause(
        f"{case.op}-overflow",
        f"{case.word} overflows: its input reaches {number_text(given.max)}, and {case.dtype} holds {case.word} only "
        f"up to about {limit:.4g}.",
        advice="Subtract the maximum first (as softmax and logsumexp do), or clamp the input.",
    )


def cast(case: Case) -> Cause | None:
    """Casts to a dtype that does not reach as far."""
    given = case.part("cast")
    if given is None or not case.out.infinities or not given.finite or given.is_bad:
        return None
    return Cause(
        "cast-overflow",
        f"The cast to {case.dtype} overflows: its input reaches {number_text(given.magnitude)}, and the largest "
        f"{case.dtype} is {number_text(case.largest)}.",
        advice="Scale the values down, or use bfloat16, which has the range of float32."
        if case.dtype == "float16"
        else "Scale the values down before the cast.",
    )


def overflow(case: Case, what: str, of: Sequence[Health] | None = None) -> Cause | None:
    """The sentence about a result that exceeds its dtype, made of some inputs: the last two, if not said."""
    finite = case.given[-2:] if of is None else of
    if not finite or not case.dtype:
        return None
    reach = " and ".join(number_text(each.magnitude) for each in finite)
    constant = case.number("term") if len(case.arguments) == 1 else None
    if constant is not None:
        reach += f" and {number_text(constant)}"
    low = case.dtype in ("float16", "float8_e5m2", "float8_e4m3fn")
    return Cause(
        "overflow",
        f"Overflow: {what} of numbers up to {reach} exceeds the largest {case.dtype}, {number_text(case.largest)}.",
        advice="Scale the values down, use bfloat16 or float32 here, or a smaller loss scale." if low else "",
    )


def product(case: Case) -> Cause | None:
    """Matrix products, convolutions and attention: sums of products."""
    if not case.given:
        return None
    if any(each.status == "intended" for each in case.inputs):
        return with_infinity(case)
    factors = _factors(case)
    if case.out.infinities or case.out.nan:
        # A sum of products can be many times larger than one of them.
        if math.prod(each.magnitude for _, each in factors) * 1e6 < case.largest:
            return None
        found = overflow(
            case,
            {"mm": "a matrix product", "addmm": "a matrix product"}.get(case.op, case.word),
            of=[each for _, each in factors],
        )
        shown = " ".join(f"{name} holds {each.spread}." for name, each in factors)
        return None if found is None else replace(found, proof=(*found.proof, shown))
    return None


def _factors(case: Case) -> list[tuple[str, Health]]:
    """The two largest inputs, in their places: which are factors and which are added differs by operation."""
    healths = [(name, case.health(place)) for place, name in enumerate(case.arguments)]
    known = [(name, each) for name, each in healths if each is not None and each.finite]
    largest = sorted(range(len(known)), key=lambda at: known[at][1].magnitude)[-2:]
    return [known[at] for at in sorted(largest)]


def elementwise(case: Case) -> Cause | None:
    """Sums and products element by element, and sums over elements."""
    found = with_infinity(case)
    healths = case.given
    if found is not None or not healths or any(each.is_bad for each in healths):
        return found
    magnitudes = [each.magnitude for each in healths]
    constant = abs(case.number("scale") or 1.0)
    if not math.isfinite(constant) or not case.out.infinities:
        return infinite_factor(case)
    reach = {
        "mul": math.prod(magnitudes) * (constant if len(case.arguments) < 2 else 1.0),
        "addcmul": math.prod(magnitudes[-2:]),
    }.get(case.op, sum(magnitudes) * max(constant, 1.0) * max(each.elements for each in healths))
    if reach < case.largest / 2:
        return infinite_factor(case)
    return overflow(case, {"mul": "a product", "sum": "a sum", "mean": "a sum"}.get(case.op, case.word))


def infinite_factor(case: Case) -> Cause | None:
    """Small numbers made infinite or NaN by a factor: in optimizers, the learning rate."""
    is_known = case.number("factor") is not None
    if not is_known and not case.varies("varying_factor"):
        return None
    reach = " and ".join(number_text(each.magnitude) for each in case.given)
    if case.finding.phase == "optimizer":
        return Cause(
            "infinite-learning-rate",
            f"The learning rate must be infinite, NaN or far too large: what {case.word} was given reaches "
            f"only {reach}.",
            advice="Look at the schedule: a division by zero, or a negative number to a power.",
        )
    return Cause(
        "infinite-constant",
        f"The number that {case.word} was given must be infinite, NaN or far too large: the tensors reach only "
        f"{reach}.",
        advice="Look at how this number is worked out: it is no tensor, so it was not recorded.",
    )


def long_product(case: Case) -> Cause | None:
    """Products over many elements."""
    given = case.health(0)
    if given is None or not case.out.infinities or given.magnitude <= 1:
        return None
    return overflow(case, f"a product of {int(given.elements)}")


def scattered_sum(case: Case) -> Cause | None:
    """Sums of as many numbers as fall together."""
    given = case.given
    if not case.out.infinities or not given:
        return None
    most = max(given, key=lambda each: each.magnitude)
    if most.magnitude * most.elements < case.largest:
        return None
    return Cause(
        "overflow",
        f"Overflow: a sum of numbers up to {number_text(most.magnitude)} exceeds the largest {case.dtype}, "
        f"{number_text(case.largest)}.",
    )


def squares(case: Case) -> Cause | None:
    """Norms, variances and squared errors."""
    return overflow(case, "a sum of squares") if case.out.infinities else None
