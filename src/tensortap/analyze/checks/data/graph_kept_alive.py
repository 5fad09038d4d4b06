"""Graphs that outlive their step because something holds on to them."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


ENOUGH = 6
"""Graphs that have to be alive."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Programs in which hardly any graph that was followed has been freed."""
    told = [(update, update.graphs) for update in evidence.updates if update.graphs is not None]
    many = [(update, graphs) for update, graphs in told if graphs.alive >= max(ENOUGH, 0.9 * graphs.marked)]
    if not many:
        return
    update, graphs = many[0]
    backward = [event.source for event in update.events if event.what == "backward"]
    yield RULE.finding(
        graphs.holder or "loss",
        f"The graphs of earlier steps are kept alive: {graphs.alive} of {graphs.marked} that were followed, "
        + (
            f"held by {graphs.holder}."
            if graphs.holder
            else "by something that holds the loss or what was made of it."
        ),
        step=update.step,
        source=graphs.source or (backward[-1] if backward else None),
        evidence={
            "graphs followed": graphs.marked,
            "of those still alive": graphs.alive,
            "held by": graphs.holder or None,
        },
        weight=0.7,
    )


RULE = Rule(
    "graph-kept-alive",
    "likely",
    "Nine tenths of the graphs that backward passes began at, six at least, are still there many updates "
    "later, because something holds the loss, or adds it up, with its graph: memory grows with every step.",
    "history.append(loss)  # with its graph\nrunning += loss",
    "how many graphs are alive, and which variable holds them",
    "Keep numbers: loss.item(), or loss.detach().",
    find,
)
