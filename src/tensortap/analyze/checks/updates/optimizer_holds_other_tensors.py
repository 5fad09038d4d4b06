"""Optimizers that hold what the model used to have."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import root_of
from tensortap.analyze.checks.parameters import History, untrained
from tensortap.analyze.checks.rule import Rule
from tensortap.records import ParameterUpdate

__all__ = ["RULE"]


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers with tensors that get no gradients, like parameters that get some and that no optimizer has."""
    missing = untrained(evidence)
    for optimizer, updates in evidence.optimizers.items():
        held = [each for each in updates[-1].parameters if optimizer in each.held]
        idle = [each for each in held if _is_idle(evidence, each.name)]
        stray = [each for each in idle if not each.is_owned]
        names = _with_as_many_dimensions(missing, stray)
        whose = (
            "which no model has and which get none: the model was made anew, moved or changed after the optimizer "
            "was made"
        )
        if not names and len(idle) == len(held):
            stray, names = idle, _of_the_same_shapes(missing, idle)
            whose = f"those of {root_of(idle[0].name)}, which get none" if idle else ""
        if not names:
            continue
        update, parameter = missing[names[0]][0]
        called = updates[-1].variable or optimizer
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        yield RULE.finding(
            names[0],
            f"{called} does not have {names[0]}{more}, which gets gradients, but {len(stray)} other tensors, {whose}.",
            step=update.step,
            source=updates[-1].made or updates[-1].source,
            weight=0.9,
            evidence={
                f"other tensors of {called}": len(stray),
                "of those with a gradient": 0,
                "parameters that get gradients and no optimizer has": len(missing),
                "shape": "×".join(map(str, parameter.shape)) or "scalar",
                "shape of one of the others": "×".join(map(str, stray[0].shape)) or "scalar",
                "largest gradient": parameter.gradient,
            },
        )


def _with_as_many_dimensions(missing: dict[str, History], held: list[ParameterUpdate]) -> list[str]:
    """Parameters that could be what these were once: as many dimensions, each of these counted once."""
    ranks, names = [len(each.shape) for each in held], []
    for name, history in missing.items():
        if len(history[0][1].shape) in ranks:
            ranks.remove(len(history[0][1].shape))
            names.append(name)
    return names


def _of_the_same_shapes(missing: dict[str, History], held: list[ParameterUpdate]) -> list[str]:
    """Parameters of a model that has exactly the shapes of these."""
    of_model: dict[str, list[str]] = {}
    for name in missing:
        of_model.setdefault(root_of(name), []).append(name)
    wanted = sorted(each.shape for each in held)
    for names in of_model.values():
        if sorted(missing[name][0][1].shape for name in names) == wanted:
            return names
    return []


def _is_idle(evidence: Evidence, name: str) -> bool:
    return all(each.gradient is None and not each.is_reached for _, each in evidence.parameters[name])


RULE = Rule(
    "optimizer-holds-other-tensors",
    "sure",
    "An optimizer has tensors that no model of the program has and that never get a gradient, while "
    "parameters of as many dimensions get gradients and are in no optimizer: the model was rebuilt, "
    "re-initialised, wrapped or moved after the optimizer was made. Or all that it has are parameters of a "
    "model that never gets a gradient, and another one of exactly those shapes is in no optimizer. Both halves "
    "are needed, so that tensors which are optimised without a model are left alone.",
    "optimizer = SGD(model.parameters(), lr=0.1)\n"
    "model.classifier = nn.Linear(512, 10)  # the optimizer has the old one",
    "how many of its tensors get no gradient, how many parameters no optimizer has, shapes of both",
    "Make the optimizer after the model is complete, moved and wrapped; or add the new parameters with "
    "add_param_group.",
    find,
    hides=("not-in-optimizer",),
)
