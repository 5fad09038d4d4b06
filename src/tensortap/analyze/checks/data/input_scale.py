"""Inputs far from unit scale, into layers that expect it."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import MATRIX_PRODUCTS, NORMALISATIONS, Flow, flow_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


import math

LARGE, SMALL = 50.0, 1e-3
"""Root mean square of an input beyond which it is told."""

_BETWEEN = ("relu", "add", "leaky_relu", "gelu", "silu", "elu", "max_pool2d_with_indices", "permute")


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Inputs that go into a layer as they are, much larger or smaller than its weights were made for."""
    first = next((flow for flow in map(flow_of, evidence.runs) if flow.trains), None)
    if first is None or first.step > 2:
        return
    told = set()
    for tensor, node in first.data:
        health = first.health(tensor)
        layer = node.module or node.name
        if layer in told or first.facts.operation(node).name not in MATRIX_PRODUCTS or health is None:
            continue
        if not (health.elements >= 8 and not health.is_bad and health.zero < health.elements):
            continue
        size = math.sqrt(health.variance + health.mean**2)
        weights = _weights(first, node.inputs, tensor)
        if SMALL <= size <= LARGE or weights is None or not 1e-3 < weights < 2:
            continue
        if first.reaches(node.tensor(), NORMALISATIONS, _BETWEEN) is not None:
            continue
        told.add(layer)
        yield RULE.finding(
            layer,
            f"What goes into {layer} has a root mean square of {size:.3g}, and its weights are at their initial scale "
            f"({weights:.2g}).",
            step=first.step,
            source=node.own_source,
            evidence={
                "root mean square of the input": size,
                "smallest": health.min,
                "largest": health.max,
                "root mean square of the weights": weights,
            },
            weight=0.5,
        )


def _weights(flow: Flow, inputs: tuple[str, ...], data: str) -> float | None:
    for tensor in inputs:
        health = flow.health(tensor)
        if tensor != data and health is not None and health.rank >= 2 and flow.is_parameter(tensor):
            return math.sqrt(health.variance + health.mean**2)
    return None


RULE = Rule(
    "input-scale",
    "likely",
    "In the first steps a layer with weights of an initial scale is given data whose root mean square is "
    "above 50 or below 0.001, as pixels from 0 to 255 or salaries have, and no normalisation follows it.",
    "images = torch.from_numpy(pixels).float()  # 0 to 255\nlogits = model(images)",
    "the root mean square of input and weights",
    "Bring inputs to about zero mean and unit variance, as (x - mean) / std.",
    find,
)
