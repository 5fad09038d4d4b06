"""Samples that should differ by chance, and are equal."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


from tensortap.records import LoaderUse

ENOUGH = 4
"""Batches in which it has to be so."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Loaders whose workers repeat each other, or whose batches repeat one sample."""
    for use in evidence.updates[-1].loaders if evidence.updates else ():
        reason = _reason(use)
        if reason is None:
            continue
        yield RULE.finding(
            use.name,
            f"{use.name} gives equal samples: {reason}.",
            step=0,
            source=use.item_source,
            evidence={
                "workers": use.workers,
                "batches compared with the one before": use.compared,
                "equal to it": use.same,
                "batches whose samples were compared": use.looked_at,
                "with samples that repeat another": use.alike,
            },
            weight=0.7,
        )


def _reason(use: LoaderUse) -> str | None:
    if use.workers > 1 and use.same >= ENOUGH and 3 * use.same >= use.compared:
        return (
            f"{use.same} of {use.compared} batches are the same as the one before, which another of its {use.workers} "
            "workers made"
        )
    if use.alike >= 2 * ENOUGH and use.alike == use.looked_at:
        return f"in all {use.looked_at} batches at least half of the samples repeat another one"
    return None


RULE = Rule(
    "same-augmentation",
    "likely",
    "Workers of a data loader give the same batch one after the other, because each has a copy of one random "
    "generator in the same state; or at least half of the samples in every batch, eight at least, repeat "
    "another one, because a seed is set for each of them. Samples that hold one number only, as padding does, "
    "are not compared.",
    "class Noise(Dataset):\n    def __init__(self):\n"
    "        self.rng = np.random.default_rng(7)  # copied into every worker",
    "how many batches, and how many of them repeat",
    "Give each worker a seed of its own (worker_init_fn, torch.initial_seed()), and set no seed for a single "
    "sample.",
    find,
)
