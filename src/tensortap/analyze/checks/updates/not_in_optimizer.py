"""Parameters that no optimizer has."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.parameters import untrained
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Models of which some parameters get gradients that nobody applies."""
    of_model: dict[str, list[str]] = {}
    found = untrained(evidence)
    for name in found:
        of_model.setdefault(name.split("/")[0], []).append(name)
    for model, names in of_model.items():
        last = evidence.updates[-1]
        own = [each for each in last.parameters if each.name.split("/")[0] == model and each.trains]
        held = [each for each in own if each.held]
        if held and 2 * len(held) <= len(own):
            continue  # only a part of it is trained, which is how a head is
        if not held and not (_is_in_training(evidence, model) and _comes_late(evidence, names)):
            continue  # what comes first extracts features, and what evaluates is a measure
        update, parameter = found[names[0]][0]
        optimizer = update.variable or update.optimizer
        more = f" (and {len(names) - 1} more of {model})" if len(names) > 1 else ""
        yield RULE.finding(
            names[0],
            f"{names[0]}{more} gets gradients, and no optimizer has it: it stays as it was made.",
            step=update.step,
            source=update.made or update.source,
            certainty="sure" if held else "likely",
            weight=0.8,
            evidence={
                "largest gradient": parameter.gradient,
                "change in all updates looked at": 0,
                "updates looked at": len(evidence.parameters[names[0]]),
                f"parameters of {model} that {optimizer} or others have": len(held),
                "parameters that none has": len(names),
            },
        )


def _is_in_training(evidence: Evidence, model: str) -> bool:
    modes = [mode.trains for update in evidence.updates for mode in update.modes if mode.model == model]
    return bool(modes) and all(modes)


def _comes_late(evidence: Evidence, names: list[str]) -> bool:
    """Whether trained parameters are used before these."""
    held = {each.name for update in evidence.updates for each in update.parameters if each.held}
    for run in reversed(evidence.training_runs):  # the first ones may know only some models
        places = [run.order[f"{name}:0"] for name in names if f"{name}:0" in run.order]
        trained = [run.order[f"{name}:0"] for name in held if f"{name}:0" in run.order]
        if places and trained:
            return min(trained) < min(places)
    return False


RULE = Rule(
    "not-in-optimizer",
    "sure",
    "A parameter asks for gradients and gets them, in at least two updates, but no optimizer has it, and "
    "its values stay the same to the last bit. It is sure if optimizers have most parameters of its model, "
    "and likely if they have none of a model in training mode whose input comes from trained ones. Left "
    "alone are frozen parameters, models of which only a smaller part is trained (a head), what a program "
    "changes by its own hand, and whole models before the trained ones or in evaluation mode.",
    "decay = [p for n, p in model.named_parameters() if n.endswith('weight')]\n"
    "rest = [p for n, p in model.named_parameters() if n.endswith('bias')]\n"
    "optimizer = AdamW([{'params': decay}, {'params': rest, 'weight_decay': 0}])  # and model.position?",
    "its largest gradient, its change, how many parameters of the model optimizers have and do not have",
    "Give it to an optimizer, or freeze it with requires_grad_(False).",
    find,
)
