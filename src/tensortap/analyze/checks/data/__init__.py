"""Rules about the data, and about modes of training and evaluation."""

from __future__ import annotations

from tensortap.analyze.checks.data import (
    dropout_in_evaluation,
    graph_kept_alive,
    input_scale,
    same_augmentation,
    same_batch,
    statistics_move_in_evaluation,
    training_in_eval_mode,
)
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    same_batch.RULE,
    same_augmentation.RULE,
    input_scale.RULE,
    training_in_eval_mode.RULE,
    dropout_in_evaluation.RULE,
    statistics_move_in_evaluation.RULE,
    graph_kept_alive.RULE,
)
