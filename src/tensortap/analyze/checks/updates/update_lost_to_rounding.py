"""Updates that are too small for the dtype."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]

SHORT = ("bfloat16", "float16")
ENOUGH = 2
MOST = 0.99
"""Share of the elements with a gradient that did not change."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Parameters of short dtypes that have gradients, and whose elements do not change."""
    found = []
    for name, history in evidence.parameters.items():
        own = [
            (update, each)
            for update, each in history
            if update.optimizer in each.held
            and each.dtype in SHORT
            and each.nonzero
            and each.lost is not None
        ]
        own = [(update, each) for update, each in own if _rate(update, name) and not update.is_skipped]
        rates = [_rate(update, name) or 0.0 for update, _ in own]
        if len(own) < ENOUGH or rates[-1] < max(rates) or (len(set(rates)) > 1 and rates[-1] > rates[-2]):
            continue  # a rate that still grows is not what the program trains with
        lost = [(each.lost or 0.0) / (each.nonzero or 1.0) for _, each in own]
        if min(lost) >= MOST:
            found.append((name, own, sum(lost) / len(lost), rates[-1]))
    if not found:
        return
    found.sort(key=lambda each: -each[1][0][1].elements)
    name, own, share, rate = found[0]
    update, parameter = own[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    yield RULE.finding(
        name,
        f"The updates of {name}{more} are lost to rounding: {share:.1%} of the elements that have a gradient stay "
        f"the same, because they are {parameter.dtype} and the update is smaller than half "
        "the distance to the next number.",
        step=update.step,
        source=update.source,
        weight=0.85,
        evidence={
            "share of elements with a gradient that did not change": share,
            "size of the parameter": parameter.size,
            "learning rate": rate,
            "updates looked at": len(own),
            "parameters concerned": len(found),
        },
    )


def _rate(update: object, name: str) -> float | None:
    groups = getattr(update, "groups", ())
    return next((group.rate for group in groups if name in group.parameters), None)


RULE = Rule(
    "update-lost-to-rounding",
    "sure",
    "A parameter in bfloat16 or float16 has gradients and a learning rate that is not zero, and still at "
    "least 99 % of those of its elements that have a gradient are the same after each update that was "
    "looked at, in two or more. As long as the learning rate grows (warm-up), nothing is said.",
    "model = model.to(torch.bfloat16)\noptimizer = SGD(model.parameters(), lr=1e-4)  # 1 + 1e-4 is 1 in bfloat16",
    "the share of elements that did not change, the size of the parameter, the learning rate",
    "Keep the parameters in float32 and use autocast for the computation, or an optimizer that keeps a "
    "copy in float32.",
    find,
)
