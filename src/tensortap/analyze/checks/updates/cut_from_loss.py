"""Parameters whose way to the loss is cut."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.cuts import Cut, cut_of, rounding_of
from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.parameters import outermost, without_gradient
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]

ENOUGH = 2


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Modules that are computed with, but get no gradient."""
    found = without_gradient(evidence, ENOUGH)
    run = next((run for run in evidence.training_runs if any(name in run.nodes for name in found)), None)
    if run is not None:
        used = [name for name in found if name in run.nodes]
        for subject, names in outermost(used, evidence.parameters).items():
            cut = cut_of(run, names)
            if cut is not None and not (cut.source is not None and cut.source.is_installed):
                update, _ = found[names[0]][0]
                yield _told(
                    subject,
                    names,
                    cut,
                    update.step,
                    update.variable or update.optimizer,
                    len(found[names[0]]),
                )
    yield from _rounded(evidence)


def _rounded(evidence: Evidence) -> Iterator[CheckFinding]:
    """The same for gradients that are zero, because something on the way is the same all around."""
    zero = {}
    for name, history in evidence.parameters.items():
        own = [(update, each) for update, each in history if update.optimizer in each.held]
        if len(own) > ENOUGH and all(each.is_reached and each.gradient == 0.0 for _, each in own):
            zero[name] = own
    run = next((run for run in evidence.training_runs if any(name in run.nodes for name in zero)), None)
    if run is None:
        return
    for subject, names in outermost(zero, evidence.parameters).items():
        cut = rounding_of(run, names)
        if cut is not None:
            update, _ = zero[names[0]][0]
            yield _told(
                subject, names, cut, update.step, update.variable or update.optimizer, len(zero[names[0]])
            )


def _told(subject: str, names: list[str], cut: Cut, step: int, optimizer: str, updates: int) -> CheckFinding:
    return RULE.finding(
        subject,
        f"{subject} is computed with, and {optimizer} has it, but its way to the loss is cut "
        f"{cut.how}: it gets no gradient.",
        step=step,
        source=cut.source,
        certainty="likely" if cut.may_be_meant else "sure",
        weight=0.75,
        evidence={
            "parameters": len(names),
            "updates looked at": updates,
            "of those with a gradient": 0,
            "last operation before the cut": cut.node,
        },
    )


RULE = Rule(
    "cut-from-loss",
    "sure",
    "A parameter that an optimizer has is computed with in the runs that train, but the loss does not lead "
    "to it, in two updates and more, while it leads to others; or its gradient is exactly zero because "
    "what is made of it is rounded. The operation and the line are named at which the way ends: argmax and "
    "the like, rounding, a new tensor made of values. It is only likely where detach, .data or no_grad end "
    "it, which may be meant as freezing. Left alone are frozen parameters, parts that get their gradient "
    "in other steps or from other optimizers, and straight-through estimators.",
    "words = generator(noise).argmax(-1)  # no gradient comes through\nloss = critic(embedding(words)).mean()",
    "how many parameters, in how many updates, the operation before the cut",
    "Take out what cuts the way, or replace it by something with a gradient (Gumbel softmax, "
    "straight-through); freeze what is not to be trained.",
    find,
    hides=(),
)
