"""Whether numbers had been growing over the runs before they became too large, or jumped in one.

Growth is a trend: a tensor that became larger several runs in a row. Where nearly all of it happened in one run, it was
one update, if a parameter has jumped, or one batch, if none has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensortap.analyze.facts import facts_of_dump
from tensortap.analyze.findings import Finding
from tensortap.analyze.health import Health, number_text
from tensortap.phases import SOURCES, is_variable
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.reader import SessionDir

__all__ = ["Growth", "growth_of", "learning_rate"]

ENOUGH_RUNS = 3
ENOUGH_FACTOR = 100.0
"""Less than this is what healthy training does to a tensor now and then."""

STEADY_FACTOR = 10.0
"""What has not grown by more than this before has not been growing."""

LARGE_PARAMETER = 1e6
"""No parameter is this large by design."""

_MOST_VALUES = 100
"""Runs whose values are read if there are no pills: it takes its time."""

_CAUSES = (
    "overflow",
    "exp-overflow",
    "cast-overflow",
    "expm1-overflow",
    "infinity-minus-infinity",
    "unknown",
)


class Growth(NamedTuple):
    """A tensor that has grown, run after run, or jumped in one."""

    tensor: str
    sentence: str
    advice: str


class _Series(NamedTuple):
    """The largest magnitude of a tensor in each run in which it was recorded."""

    tensor: str
    is_parameter: bool
    runs: Any
    sizes: Any

    @property
    def factor(self) -> float:
        return float(self.sizes[-1] / self.sizes[0])

    @property
    def steps(self) -> Any:
        """By which power of e it grew from run to run."""
        return np.diff(np.log(self.sizes))

    @property
    def has_jumped(self) -> bool:
        """Whether it grew in the last run, by much, and not before."""
        steps = self.steps
        return bool(steps[-1] >= math.log(ENOUGH_FACTOR) and steps[:-1].sum() < math.log(STEADY_FACTOR))

    @property
    def has_grown(self) -> bool:
        """Whether it became larger several times, and much larger in all."""
        steps = self.steps
        return bool(
            len(self.sizes) >= ENOUGH_RUNS
            and self.factor >= ENOUGH_FACTOR
            and not self.has_jumped
            and np.count_nonzero(steps > math.log(1.5)) >= 2
            and self.sizes[-1] >= self.sizes.max() / 10
        )


def growth_of(session: SessionDir, finding: Finding, facts: RunFacts | None = None) -> Growth | None:
    """What earlier runs say about a finding that has to do with numbers too large; None if nothing."""
    if finding.cause.kind not in _CAUSES:
        return None
    known = [_series(session, finding, tensor, facts) for tensor in _candidates(finding, facts)]
    series = [each for each in known if each is not None]
    grown = max((each for each in series if each.has_grown), key=lambda each: each.factor, default=None)
    if grown is not None:
        return _trend(grown, facts)
    jumped = [each for each in series if each.has_jumped]
    updated = max(
        (each for each in jumped if each.is_parameter), key=lambda each: each.steps[-1], default=None
    )
    if updated is not None:
        return _one_update(session, updated, facts)
    parameters = [each for each in series if each.is_parameter]
    if jumped and parameters and jumped[0].runs[-1] == finding.run:
        return _one_batch(jumped[0])
    return _too_large(finding, facts)


def _series(session: SessionDir, finding: Finding, tensor: str, facts: RunFacts | None) -> _Series | None:
    try:
        runs, sizes = _sizes(session, finding, tensor)
    except (OSError, ValueError):
        return None
    known = np.isfinite(sizes) & (sizes > 0)
    if np.count_nonzero(known) < 2:
        return None
    node = None if facts is None else facts.node_of(tensor)
    is_parameter = node is not None and is_variable(node.op_type)
    return _Series(tensor, is_parameter, runs[known], sizes[known])


def _sizes(session: SessionDir, finding: Finding, tensor: str) -> tuple[Any, Any]:
    """The largest magnitude of a tensor in the runs up to the one of a finding: from pills, else from values."""
    history = session.history(tensor)
    if len(history) or len(session.runs) > _MOST_VALUES:
        history = history[(history["task"] == finding.rank) & (history["run"] <= finding.run)]
        return history["run"], np.maximum(np.abs(history["min"]), np.abs(history["max"]))
    found = [
        (row["run"], Health.of_value(row["value"]))
        for row in session.history(tensor, "DebugIdentity")
        if row["task"] == finding.rank and row["run"] <= finding.run
    ]
    sizes = [(run, health.magnitude) for run, health in found if health is not None and not health.is_bad]
    return np.array([run for run, _ in sizes], int), np.array([size for _, size in sizes], float)


def _trend(series: _Series, facts: RunFacts | None) -> Growth:
    runs, sizes = series.runs, series.sizes
    if runs[0] == runs[-1]:
        return _in_a_loop(series)
    per_run = series.factor ** (1 / max(int(runs[-1] - runs[0]), 1))
    return Growth(
        series.tensor,
        f"It had been growing: {series.tensor} went from {number_text(float(sizes[0]))} in run {int(runs[0])} to "
        f"{number_text(float(sizes[-1]))} in run {int(runs[-1])}, about ×{number_text(round(per_run, 1))} per run, as "
        "happens when updates are too large.",
        f"Lower the learning rate{_rate_text(facts)}, warm it up, or clip the gradients.",
    )


def _in_a_loop(series: _Series) -> Growth:
    """Growth within one run: the tensor is worked out several times in it."""
    first, last = (number_text(float(each)) for each in series.sizes[[0, -1]])
    return Growth(
        series.tensor,
        f"It grows from iteration to iteration: {series.tensor} goes from {first} to {last} in "
        f"{len(series.sizes)} of them, in one run.",
        "Keep what the loop hands on bounded: normalise it, clip it, or make its factor smaller than 1.",
    )


def _too_large(finding: Finding, facts: RunFacts | None) -> Growth | None:
    """A parameter that is so large itself that it has been growing, though nobody recorded the runs before."""
    if facts is None:
        return None
    found = []
    for tensor in _candidates(finding, facts):
        node, health = facts.node_of(tensor), facts.health(tensor)
        if node is not None and health is not None and is_variable(node.op_type) and not health.is_bad:
            found.append((health.magnitude, tensor))
    size, tensor = max(found, default=(0.0, ""))
    if size < LARGE_PARAMETER:
        return None
    return Growth(
        tensor,
        f"The parameter {tensor.rpartition(':')[0]} itself reaches {number_text(size)}: the updates before were too "
        "large.",
        f"Lower the learning rate{_rate_text(facts)}, warm it up, or clip the gradients.",
    )


def _one_update(session: SessionDir, series: _Series, facts: RunFacts | None) -> Growth:
    before, after = (number_text(float(each)) for each in series.sizes[-2:])
    name = series.tensor.rpartition(":")[0]
    run = int(series.runs[-2])
    gradient = _gradient_text(session, run, name)
    return Growth(
        series.tensor,
        f"It was one update: {name} reached {before} when run {run} began, and {after} after it{gradient}.",
        f"Lower the learning rate{_rate_text(facts)}, warm it up, or clip the gradients.",
    )


def _gradient_text(session: SessionDir, run: int, parameter: str) -> str:
    """How large the gradient of a parameter was in one run, if that was recorded."""
    for reference in session.runs:
        if reference.index != run:
            continue
        try:
            facts = facts_of_dump(reference.open(validate=False))
            gradient = facts.gradients.get(parameter)
            health = None if gradient is None else facts.health(gradient)
        except (OSError, ValueError):
            continue
        if health is not None and health.finite and not health.is_bad:
            norm = math.sqrt(health.elements * (health.variance + health.mean**2))
            return f"; the norm of its gradient was {number_text(norm)}"
    return ""


def _one_batch(series: _Series) -> Growth:
    before, after = (number_text(float(each)) for each in series.sizes[-2:])
    return Growth(
        series.tensor,
        f"Nothing had been growing: {series.tensor} reached {before} in run {int(series.runs[-2])}, and {after} in "
        "this one, while the parameters stayed what they were. It is this batch.",
        "Look at the data of this batch.",
    )


def _rate_text(facts: RunFacts | None) -> str:
    rate = None if facts is None else learning_rate(facts)
    return "" if rate is None else f" (it is {number_text(rate)})"


def _candidates(finding: Finding, facts: RunFacts | None) -> list[str]:
    """Parameters behind the finding, then what the node was given."""
    names = [each.tensor for each in finding.inputs]
    if facts is None:
        return names
    found: list[str] = []
    pending = list(finding.node.inputs)
    seen: set[str] = set()
    while pending and len(seen) < 200:
        tensor = pending.pop(0)
        node = facts.node_of(tensor)
        if node is None or tensor in seen:
            continue
        seen.add(tensor)
        if node.op_type in SOURCES:
            if is_variable(node.op_type):
                found.append(tensor)
        else:
            pending += node.inputs
    return [*found[:8], *names]


def learning_rate(facts: RunFacts) -> float | None:
    """The learning rate, if the engine knew it or the optimizer's operations show it; None otherwise."""
    told = list(facts.circumstances.learning_rates.values())
    if told:
        return told[0]
    for name in facts.nodes:
        if facts.phase(name) == "optimizer":
            rate = _rate(facts, facts.nodes[name])
            if rate is not None:
                return rate
    return None


def _rate(facts: RunFacts, node: Node) -> float | None:
    """The rate by which an update is scaled, if it is a number that is the rate and nothing else."""
    operation = facts.operation(node)
    if operation.updates and "rate" in operation.inputs:
        health = facts.health_behind(node.inputs[operation.place_of("rate")])
        return health.max if health is not None and health.elements == 1 and health.finite else None
    names = operation.numbers.get("learning_rate", ())
    if _is_plain_step(facts, node):
        names += operation.numbers.get("step", ())
    value = next((node.attributes[name] for name in names if name in node.attributes), None)
    return abs(value) if isinstance(value, float) and value else None


def _is_plain_step(facts: RunFacts, node: Node) -> bool:
    """Whether a parameter has something added to it that is its gradient, or what an optimizer has made of it alone."""
    operation = facts.operation(node)
    return (
        operation.name == "add"
        and (len(node.inputs) == 2 or operation.is_over_lists)
        and facts.is_in_place(node)
        and facts.written_variable(node.tensor(0)) in facts.gradients
    )
