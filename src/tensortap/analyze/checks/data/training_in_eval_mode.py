"""Training steps while the model is still in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import flow_of, root_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Models that were trained in training mode, evaluated, and then trained as the evaluation left them."""
    began: dict[str, int] = {}
    left: dict[str, int] = {}
    told = set()
    for update in evidence.updates:
        for mode in update.modes:
            if mode.trains:
                began.setdefault(mode.model, update.step)
                left.pop(mode.model, None)
            elif mode.model in began and mode.model not in told:
                since = left.setdefault(mode.model, update.step)
                own = [
                    each for each in update.parameters if root_of(each.name) == mode.model and each.changed
                ]
                kinds = _that_depend_on_mode(evidence, mode.model)
                if not own or not kinds or not _was_evaluated(evidence, mode.model, update.step):
                    continue
                told.add(mode.model)
                yield RULE.finding(
                    mode.model,
                    f"{mode.model} is trained in evaluation mode since step {since}: nobody has called train() "
                    f"after it was evaluated, and {' and '.join(sorted(kinds))} {'do' if len(kinds) > 1 else 'does'} "
                    "nothing.",
                    step=since,
                    source=update.source,
                    evidence={
                        "in training mode since step": began[mode.model],
                        "in evaluation mode since step": since,
                        "parameters that were updated": len(own),
                    },
                )


def _that_depend_on_mode(evidence: Evidence, model: str) -> set[str]:
    """What of a model is different in training."""
    found = set()
    for run in evidence.runs:
        flow = flow_of(run)
        if not flow.trains:
            continue
        for node in flow.nodes("bernoulli", "native_dropout", "dropout", "batch_norm"):
            if root_of(node.module or "") == model and node.attributes.get("training") is not False:
                operation = run.operation(node).name
                found.add("BatchNorm" if operation == "batch_norm" else "dropout")
    return found


def _was_evaluated(evidence: Evidence, model: str, step: int) -> bool:
    modes = (run.circumstances.modes.get(model) for run in evidence.runs if run.info.global_step <= step)
    return any(mode in ("evaluation", "mixed") for mode in modes)


RULE = Rule(
    "training-in-eval-mode",
    "sure",
    "A model with dropout or BatchNorm is updated in training mode first, then called without gradients in "
    "evaluation mode, and then updated while it still is in evaluation mode. Models that are trained in "
    "evaluation mode from the beginning, single modules that are kept in it, and models that are put into it "
    "without being evaluated, are meant so.",
    "def validate():\n    model.eval()\n    ...  # and nobody calls model.train()",
    "since which steps the model has been in which mode",
    "Call model.train() at the end of the evaluation, or at the beginning of each epoch.",
    find,
)
