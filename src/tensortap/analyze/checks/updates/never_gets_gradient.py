"""Parameters that nothing uses."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.parameters import outermost, without_gradient
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]

ENOUGH = 10
"""Updates: parts of a model may be used now and then."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Modules of the program's own classes whose parameters no run that trains has used."""
    runs = evidence.training_runs
    found = without_gradient(evidence, ENOUGH)
    unused = [name for name in found if len(runs) >= 3 and not any(name in run.nodes for run in runs)]
    unused = [name for name in unused if not _is_installed(found[name][0][1].source)]
    for subject, names in outermost(unused, evidence.parameters).items():
        update, parameter = found[names[0]][0]
        yield RULE.finding(
            subject,
            f"{subject} is given to {update.variable or update.optimizer}, and nothing that leads to the loss uses it.",
            step=update.step,
            source=parameter.source,
            weight=0.4,
            evidence={
                "parameters": len(names),
                "elements": sum(found[name][0][1].elements for name in names),
                "updates looked at": len(found[names[0]]),
                "of those with a gradient": 0,
                "runs in which it was used": 0,
            },
        )


def _is_installed(source: object) -> bool:
    return bool(getattr(source, "is_installed", False))


RULE = Rule(
    "never-gets-gradient",
    "likely",
    "A parameter asks for gradients and an optimizer has it, but in ten updates it had none, and no run "
    "that trains has used it, while other parameters of that optimizer are trained. Left alone are models "
    "of which any part is used now and then (experts, heads), and modules of installed packages, which "
    "often have more than is needed.",
    "self.right = nn.Linear(8, 16)\n...\nreturn self.left(x) + self.left(x)  # right was meant",
    "how many parameters and elements, in how many updates",
    "Use it in forward, or take it out of the model.",
    find,
)
