"""What a check has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tensortap.records import Frame

__all__ = ["Certainty", "CheckFinding"]

Certainty = Literal["sure", "likely"]


@dataclass(frozen=True)
class CheckFinding:
    """Something that is silently wrong in a program.

    Attributes:
        kind: which rule found it, such as `gradients-not-cleared`.
        subject: the parameter, module, tensor or optimizer that it is about.
        step: the first step at which it was so.
        certainty: `sure` if it contradicts what the program itself says, `likely` if it usually is a mistake.
        sentence: what is wrong.
        evidence: the numbers that show it.
        advice: what usually helps.
        source: the line.
        rank: on which it was found.
        weight: how telling it is among others of the same certainty.

    >>> finding = CheckFinding("same-batch", "x", 3, "likely", "It is the same.", {"runs": 4}, "Take another.")
    >>> finding.key, finding.as_dict()["try"]
    ('same-batch:x', 'Take another.')
    """

    kind: str
    subject: str
    step: int
    certainty: Certainty
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    source: Frame | None = None
    rank: int = 0
    weight: float = 0.5

    @property
    def key(self) -> str:
        """By which it is known, and accepted."""
        return f"{self.kind}:{self.subject}"

    @property
    def is_sure(self) -> bool:
        """Whether it cannot be meant."""
        return self.certainty == "sure"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": self.kind,
            "subject": self.subject,
            "step": self.step,
            "file": None if self.source is None else self.source.file,
            "line": None if self.source is None else self.source.line,
            "certainty": self.certainty,
            "sentence": self.sentence,
            "evidence": dict(self.evidence),
            "try": self.advice,
        }
