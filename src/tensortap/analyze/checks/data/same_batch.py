"""The same batch in every step."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


ENOUGH = 8
"""Batches that have to be equal to the one before."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Loaders of several batches that give one and the same."""
    for use in evidence.updates[-1].loaders if evidence.updates else ():
        if use.same < ENOUGH or use.same < use.compared or use.batches is None or use.batches < 2:
            continue
        again = use.begun >= use.drawn
        yield RULE.finding(
            use.name,
            f"{use.name} has {use.batches} batches, and all {use.drawn} that were drawn are the same"
            + (f": it is begun anew for each of them ({use.begun} times)." if again else "."),
            step=0,
            source=use.source if again else use.item_source,
            evidence={
                "batches in one pass": use.batches,
                "batches drawn": use.drawn,
                "compared with the one before": use.compared,
                "equal to it": use.same,
                "passes begun": use.begun,
            },
            weight=0.9,
        )


RULE = Rule(
    "same-batch",
    "likely",
    "A data loader that has several batches in one pass over its data gives the same one every time, eight at "
    "least: it is begun anew in every step, or its data set returns the same sample whatever it is asked for. "
    "A batch that is taken once before the loop, to see whether a model can learn it at all, and loaders "
    "whose only batch is all the data, are left alone.",
    "for step in range(1000):\n    x, y = next(iter(loader))",
    "how many batches were drawn, and how many were equal to the one before",
    "Iterate over the loader itself, or keep its iterator; look at what the data set does with the index.",
    find,
    hides=("same-augmentation",),
)
