"""A rule: what it looks at, when it speaks, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensortap.analyze.checks.finding import Certainty, CheckFinding
from tensortap.records import Frame

if TYPE_CHECKING:
    from tensortap.analyze.checks.evidence import Evidence

__all__ = ["Rule"]


@dataclass(frozen=True)
class Rule:
    """One kind of mistake.

    Attributes:
        kind: its name.
        certainty: of what it finds, unless it says otherwise.
        says: the rule in one paragraph, with what it leaves alone because it may be meant.
        example: a few lines of a program that it finds.
        shows: the numbers that are its evidence, in words.
        remedy: what usually helps.
        find: works findings out, from nothing but the evidence. What is not known there is no reason to speak.
        hides: kinds that are not told besides this one, because they follow from it.
    """

    kind: str
    certainty: Certainty
    says: str
    example: str
    shows: str
    remedy: str
    find: Callable[[Evidence], Iterable[CheckFinding]]
    hides: tuple[str, ...] = ()

    def finding(
        self,
        subject: str,
        sentence: str,
        *,
        step: int,
        source: Frame | None = None,
        evidence: Mapping[str, Any] | None = None,
        certainty: Certainty | None = None,
        advice: str | None = None,
        weight: float = 0.5,
    ) -> CheckFinding:
        """A finding of this rule."""
        return CheckFinding(
            self.kind,
            subject,
            step,
            certainty or self.certainty,
            sentence,
            evidence or {},
            self.remedy if advice is None else advice,
            source,
            weight=weight,
        )
