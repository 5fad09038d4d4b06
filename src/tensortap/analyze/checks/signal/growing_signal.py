"""Values that grow from layer to layer, or from run to run, on their way to overflow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import MATRIX_PRODUCTS, Flow, flow_of, root_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


import math
from itertools import pairwise

from tensortap.analyze.health import Health
from tensortap.records import Node

LAYERS, RUNS = 5, 6
"""In a row, that each have to be larger than the one before."""

_STEP, _RUN, _TOTAL = 2.0, 1.2, 1e4


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Models whose layers multiply what they are given, and outputs that multiply with every run."""
    trained = [flow for flow in map(flow_of, evidence.runs) if flow.trains]
    if not trained:
        return
    told = set()
    for model, chain in _chains(trained[0]).items():
        sizes = [size for size, _ in chain]
        if sizes[-1] / sizes[0] >= _TOTAL and len(chain) >= LAYERS:
            told.add(model)
            first, last = chain[0][1], chain[-1][1]
            yield RULE.finding(
                model,
                f"Values grow from layer to layer: by {sizes[-1] / sizes[0]:.1g} over {len(chain)} layers, from "
                f"{first.name} to {last.name}.",
                step=trained[0].step,
                source=last.own_source,
                evidence={
                    "layers": len(chain),
                    "root mean square in the first": sizes[0],
                    "in the last": sizes[-1],
                    "factor per layer": (sizes[-1] / sizes[0]) ** (1 / (len(chain) - 1)),
                },
                weight=0.5,
            )
    yield from _from_run_to_run(trained, told)


def _chains(flow: Flow) -> dict[str, list[tuple[float, Node]]]:
    """The longest row of layers of each model that each make values at least twice as large."""
    best: dict[str, list[tuple[float, Node]]] = {}
    row: dict[str, list[tuple[float, Node]]] = {}
    nodes = sorted(flow.nodes(*MATRIX_PRODUCTS), key=lambda node: flow.facts.order.get(node.tensor(), 0))
    for node in nodes:
        health = flow.health(node.tensor())
        size = None if health is None else _size(health)
        if size is None or not node.module or not flow.is_trained(node):
            continue
        model = root_of(node.module)
        before = row.get(model, [])
        row[model] = [*before, (size, node)] if before and size >= _STEP * before[-1][0] else [(size, node)]
        if len(row[model]) > len(best.get(model, ())):
            best[model] = row[model]
    return best


def _from_run_to_run(trained: list[Flow], told: set[str]) -> Iterator[CheckFinding]:
    sizes: dict[str, list[tuple[float, Flow]]] = {}
    for flow in trained:
        for node in flow.nodes(*MATRIX_PRODUCTS):
            health = flow.health(node.tensor())
            size = None if health is None else _size(health)
            if size is not None and node.module:
                sizes.setdefault(node.name, []).append((size, flow))
    for name, runs in sizes.items():
        if len(runs) < RUNS:
            continue
        node = runs[0][1].facts.nodes[name]
        model = root_of(node.module or name)
        values = [size for size, _ in runs]
        grows = all(b >= _RUN * a for a, b in pairwise(values))
        if model in told or not grows or values[-1] < _TOTAL * values[0]:
            continue
        told.add(model)
        yield RULE.finding(
            model,
            f"{name} grows with every run: from {values[0]:.2g} to {values[-1]:.2g} in {len(values)} runs.",
            step=runs[0][1].step,
            source=node.own_source,
            evidence={
                "root mean square in the first run": values[0],
                "in the last": values[-1],
                "runs": len(values),
                "smallest factor between two": min(b / a for a, b in pairwise(values)),
            },
            weight=0.6,
        )


def _size(health: Health) -> float | None:
    size = math.sqrt(health.variance + health.mean**2) if health.elements else 0.0
    return size if math.isfinite(size) and size > 0 else None


RULE = Rule(
    "growing-signal",
    "likely",
    "Five layers of a model or more in a row make values at least twice as large each, ten thousand times in "
    "all; or what a layer returns grows by a fifth or more in each of the runs that were kept, six at least, "
    "and ten thousand times in all. Both go on until numbers overflow.",
    "for layer in layers:\n    nn.init.normal_(layer.weight)  # standard deviation 1",
    "the sizes at both ends, and how many layers or runs lie between",
    "Initialise layers so that they keep the variance, normalise between them, or lower the learning rate.",
    find,
)
