"""Rules about what goes through a network, forward and back."""

from __future__ import annotations

from tensortap.analyze.checks.rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = ()
