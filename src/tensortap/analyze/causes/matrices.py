"""Matrices that cannot be inverted."""

from __future__ import annotations

from tensortap.analyze.case import Case
from tensortap.analyze.findings import Cause

__all__ = ["determinant", "singular"]


def singular(case: Case) -> Cause | None:
    """Factorisations and inverses of a singular matrix."""
    if any(each.is_bad for each in case.given) or not case.given:
        return None
    done = {"cholesky": "factorised", "solve": "solved"}.get(case.op, "inverted")
    return Cause(
        "singular-matrix",
        f"A singular matrix cannot be {done}: {case.arguments[0]} holds {case.given[0].spread}, and {case.word} does "
        "not stop at it.",
        advice=f"Add a small multiple of the identity, use {case.api('pseudo_inverse')}, or look at the info it "
        "returns.",
    )


def determinant(case: Case) -> Cause | None:
    """The logarithm of a determinant that is zero."""
    if not case.out.neg_inf:
        return None
    return Cause(
        "singular-matrix",
        f"The logarithm of a determinant of zero: {case.arguments[0]} holds a singular matrix.",
        advice="Add a small multiple of the identity, or use a factorisation whose determinant cannot vanish.",
    )
