"""Rules about what flows through the layers, forward and backward."""

from __future__ import annotations

from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.signal import (
    dead_units,
    equal_rows,
    float16_gradients_vanish,
    growing_signal,
    saturated,
    uninitialised_weight,
)

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    dead_units.RULE,
    saturated.RULE,
    float16_gradients_vanish.RULE,
    equal_rows.RULE,
    uninitialised_weight.RULE,
    growing_signal.RULE,
)
