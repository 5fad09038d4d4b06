"""Rules about what the loss is given, and what it depends on."""

from __future__ import annotations

from tensortap.analyze.checks.rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = ()
