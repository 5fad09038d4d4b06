"""What the search for bad values answers with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensortap.analyze.collectives import Arrival
from tensortap.analyze.coverage import COMPLETE, Coverage
from tensortap.analyze.health import Health
from tensortap.records import Frame, Node

__all__ = ["UNEXPLAINED", "Cause", "Finding", "InputHealth", "Origin", "Report", "RunReport"]


@dataclass(frozen=True, slots=True)
class InputHealth:
    """An input of the node that went bad.

    Attributes:
        health: None if it was not recorded.
        status: `good`, `bad`, `intended` (infinities that were put there on purpose), `partly` (part of something bad)
            or `unknown`.
        whole: if it is part of another tensor, whose health this is, its name.
    """

    tensor: str
    health: Health | None
    status: str
    whole: str | None = None

    def __str__(self) -> str:
        if self.health is None:
            return {"unknown": "not recorded", "good": "good"}.get(self.status, self.status)
        text = f"{self.health}, intended" if self.status == "intended" else str(self.health)
        return text if self.whole is None else f"part of {self.whole}: {text}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        health = {"status": self.status} if self.health is None else self.health.as_dict()
        health = {**health, "status": self.status, "text": str(self)}
        return {"tensor": self.tensor, "health": health, "part_of": self.whole}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a node made a bad value.

    Attributes:
        kind: a word for programs, such as `log-of-zero`; `unknown` if the cause was not recognised.
        sentence: the cause in one sentence, with the numbers that prove it.
        proof: further evidence, one sentence each.
        advice: what usually helps, or nothing.
    """

    kind: str
    sentence: str
    proof: tuple[str, ...] = ()
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "proof": list(self.proof),
            "advice": self.advice,
        }


UNEXPLAINED = Cause("unknown", "The cause was not recognised.")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value that came bad into a run has become bad.

    Attributes:
        sentence: what is known, in words.
        run: the earlier run that made it bad, None if it is not known.
        node: what made it bad there.
        is_unseen: it became bad in a run that was not watched, so that what is told is only where it was seen first.
    """

    sentence: str
    run: int | None = None
    node: str | None = None
    is_unseen: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"text": self.sentence, "run": self.run, "node": self.node}


@dataclass(frozen=True, slots=True)
class Finding:
    """One node that made a bad value of good ones, or a value that was bad when it came.

    Attributes:
        run: number of the run.
        step: global step, -1 if unknown.
        timestamp: microseconds since the epoch, 0 if unknown.
        run_name: of the run directory.
        node: what made it.
        slot: which output.
        health: of that output.
        phase: forward, backward, optimizer, input or parameter.
        module: path of the module, None outside of any.
        source: the innermost line of the user's program, None if unknown; for what came from outside the step, the
            line that uses it first.
        source_text: that line.
        inputs: what the node was given.
        propagators: the tensors that went bad because of it, in the order they did.
        reached: what of importance is among them: the loss, gradients, parameters.
        is_certain: every input was recorded, and good.
        cause: why.
        origin: what is known about where a value that came bad has come from, or where it was used first.
        during: what the program was doing: training with which learning rate, or evaluating; None if it is not known.
        came_by: the collective by which it came from other ranks, None if it was made here.
        parts: which parts of sharded tensors this rank has, in words, of those that have to do with it.
        arrivals: how it came to other ranks.
    """

    run: int
    step: int
    rank: int
    timestamp: int
    run_name: str
    node: Node
    slot: int
    health: Health
    phase: str
    module: str | None
    source: Frame | None
    source_text: str | None
    inputs: tuple[InputHealth, ...]
    propagators: tuple[str, ...]
    reached: tuple[str, ...]
    is_certain: bool
    cause: Cause = UNEXPLAINED
    origin: Origin | None = None
    during: str | None = None
    came_by: Node | None = None
    parts: tuple[str, ...] = ()
    arrivals: tuple[Arrival, ...] = ()

    @property
    def tensor(self) -> str:
        """The tensor that went bad."""
        return self.node.tensor(self.slot)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        source = None
        if self.source is not None:
            source = {
                "file": self.source.file,
                "line": self.source.line,
                "function": self.source.function,
                "text": self.source_text,
            }
        return {
            "run": self.run,
            "step": self.step,
            "rank": self.rank,
            "run_name": self.run_name,
            "timestamp": self.timestamp,
            "node": self.node.name,
            "tensor": self.tensor,
            "op_type": self.node.op_type,
            "phase": self.phase,
            "module": self.module,
            "source": source,
            "stack": [str(frame) for frame in self.node.stack],
            "cause": self.cause.sentence,
            "cause_kind": self.cause.kind,
            "proof": list(self.cause.proof),
            "advice": self.cause.advice,
            "inputs": [each.as_dict() for each in self.inputs],
            "output": {"tensor": self.tensor, "health": {**self.health.as_dict(), "text": str(self.health)}},
            "is_certain": self.is_certain,
            "origin": None if self.origin is None else self.origin.as_dict(),
            "during": self.during,
            "reached": list(self.reached),
            "propagators": list(self.propagators),
            "came_by": None if self.came_by is None else self.came_by.name,
            "parts": list(self.parts),
            "arrivals": [each.as_dict() for each in self.arrivals],
        }


@dataclass(frozen=True, slots=True)
class RunReport:
    """What the search found in one run.

    Attributes:
        findings: the alarms in the order of execution; the first is the answer.
        contained: bad values that came to nothing: they were masked, or ended in an operation that took no harm.
        intended: number of tensors with infinities that were put there on purpose.
        bad: number of bad tensors, whatever became of them.
        looked_at: number of tensors whose health is known.
        was_tested: the program itself has tested a bad value and, as far as is known, gone on.
        unread: tensors that were recorded, but could not be looked at.
    """

    run: int
    step: int
    rank: int
    name: str
    findings: tuple[Finding, ...] = ()
    contained: tuple[Finding, ...] = ()
    intended: int = 0
    bad: int = 0
    looked_at: int = 0
    notices: tuple[str, ...] = ()
    was_tested: bool = False
    unread: tuple[str, ...] = ()

    @property
    def first_bad(self) -> Finding | None:
        """The answer, None if the run is healthy."""
        return self.findings[0] if self.findings else None


@dataclass(frozen=True, slots=True)
class Report:
    """What the search found in a session.

    Attributes:
        first_bad: the first alarm of all, None if everything is healthy.
        reports: of the runs that were looked at closely, in the order of time.
        runs: number of runs there are.
        later_runs: numbers of later runs in which the same tensor was bad again.
        ranks: that wrote here.
        is_session: whether the directory is a session, and not a single run.
        is_known: whether anything was recorded that tells the health of a tensor.
        coverage: how much of the job was seen.
        unread: tensors that were recorded in any run, but could not be looked at: neither good nor bad.
    """

    directory: Path
    first_bad: Finding | None
    reports: tuple[RunReport, ...]
    runs: int
    tensors: int
    later_runs: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()
    is_session: bool = True
    is_known: bool = True
    coverage: Coverage = COMPLETE

    @property
    def is_bad(self) -> bool:
        """Whether something bad was found, in a run that was watched or in another one."""
        return self.first_bad is not None or self.coverage.unseen_bad is not None

    @property
    def is_healthy(self) -> bool:
        """Whether everything was seen, and nothing in it is bad."""
        return self.first_bad is None and self.coverage.is_complete and not self.unread

    unread: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        first = self.first_bad
        home = next((each for each in self.reports if first is not None and first in each.findings), None)
        others = [] if home is None else [each for each in home.findings if each is not first]
        return {
            "directory": str(self.directory),
            "first_bad": None if first is None else first.as_dict(),
            "propagators": [] if first is None else list(first.propagators),
            "findings": [] if first is None else [first.as_dict(), *(each.as_dict() for each in others)],
            "contained": [each.as_dict() for report in self.reports for each in report.contained],
            "intended": sum(report.intended for report in self.reports),
            "runs": self.runs,
            "ranks": list(self.ranks),
            "tensors": self.tensors,
            "not_looked_at": list(self.unread),
            "later_bad_runs": list(self.later_runs),
            "healthy": self.is_healthy,
            "coverage": self.coverage.as_dict(),
            "notices": list(self.notices),
        }
