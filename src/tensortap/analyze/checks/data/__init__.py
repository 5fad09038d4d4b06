"""Rules about what a model is given, and in which mode it is."""

from __future__ import annotations

from tensortap.analyze.checks.rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = ()
