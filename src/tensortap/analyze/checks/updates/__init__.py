"""Rules about updates: whether what is to be trained is, and by what."""

from __future__ import annotations

from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates import gradients_not_cleared

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (gradients_not_cleared.RULE,)
