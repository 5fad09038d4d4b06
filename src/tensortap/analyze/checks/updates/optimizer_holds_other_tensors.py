"""Optimizers that hold what the model used to have."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.parameters import untrained
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers with tensors that no model has, of the shapes of parameters that no optimizer has."""
    missing = untrained(evidence)
    for optimizer, updates in evidence.optimizers.items():
        held = [each for each in updates[-1].parameters if optimizer in each.held and not each.is_owned]
        idle = [each for each in held if _is_idle(evidence, each.name)]
        ranks = [len(each.shape) for each in idle]
        names = []
        for name, history in missing.items():
            if len(history[0][1].shape) in ranks:
                ranks.remove(len(history[0][1].shape))
                names.append(name)
        if not names:
            continue
        update, parameter = missing[names[0]][0]
        called = updates[-1].variable or optimizer
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        yield RULE.finding(
            names[0],
            f"{called} does not have {names[0]}{more}, which gets gradients, but {len(idle)} other tensors, "
            "which no model has and which get none: the model was made anew, moved or changed after the "
            "optimizer was made.",
            step=update.step,
            source=updates[-1].made or updates[-1].source,
            weight=0.9,
            evidence={
                f"tensors of {called} that no model has": len(idle),
                "of those with a gradient": 0,
                "parameters that get gradients and no optimizer has": len(missing),
                "shape": "×".join(map(str, parameter.shape)) or "scalar",
                "shape of one that no model has": "×".join(map(str, idle[0].shape)) or "scalar",
                "largest gradient": parameter.gradient,
            },
        )


def _is_idle(evidence: Evidence, name: str) -> bool:
    return all(each.gradient is None and not each.is_reached for _, each in evidence.parameters[name])


RULE = Rule(
    "optimizer-holds-other-tensors",
    "sure",
    "An optimizer has tensors that no model of the program has and that never get a gradient, while "
    "parameters of as many dimensions get gradients and are in no optimizer: the model was rebuilt, "
    "re-initialised, wrapped or moved after the optimizer was made. Both halves are needed, so that "
    "tensors which are optimised without a model are left alone.",
    "optimizer = SGD(model.parameters(), lr=0.1)\n"
    "model.classifier = nn.Linear(512, 10)  # the optimizer has the old one",
    "how many of its tensors no model has, how many parameters no optimizer has, shapes of both",
    "Make the optimizer after the model is complete, moved and wrapped; or add the new parameters with "
    "add_param_group.",
    find,
    hides=("not-in-optimizer",),
)
