"""Rules about what the loss is given, and what it depends on."""

from __future__ import annotations

from tensortap.analyze.checks.loss import (
    broadcast_in_loss,
    logits_as_log_probabilities,
    loss_without_inputs,
    loss_without_parameters,
    sigmoid_twice,
    softmax_over_batch,
    softmax_twice,
    targets_constant,
    targets_ignored,
)
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    softmax_twice.RULE,
    sigmoid_twice.RULE,
    logits_as_log_probabilities.RULE,
    broadcast_in_loss.RULE,
    softmax_over_batch.RULE,
    loss_without_parameters.RULE,
    loss_without_inputs.RULE,
    targets_ignored.RULE,
    targets_constant.RULE,
)
