"""Rules about updates: whether what is to be trained is, and by what."""

from __future__ import annotations

from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates import (
    cleared_before_step,
    clipped_after_step,
    clipped_before_unscale,
    copy_is_trained,
    copy_never_follows,
    cut_from_loss,
    gradients_not_cleared,
    learning_rate_jumps,
    learning_rate_vanished,
    learning_rate_zero,
    never_gets_gradient,
    not_in_optimizer,
    optimizer_holds_other_tensors,
    scaler_skips_every_step,
    step_without_backward,
    stepped_twice,
    unregistered_parameter,
    update_lost_to_rounding,
)

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    not_in_optimizer.RULE,
    optimizer_holds_other_tensors.RULE,
    unregistered_parameter.RULE,
    never_gets_gradient.RULE,
    cut_from_loss.RULE,
    gradients_not_cleared.RULE,
    cleared_before_step.RULE,
    step_without_backward.RULE,
    stepped_twice.RULE,
    learning_rate_zero.RULE,
    learning_rate_vanished.RULE,
    learning_rate_jumps.RULE,
    update_lost_to_rounding.RULE,
    scaler_skips_every_step.RULE,
    clipped_after_step.RULE,
    clipped_before_unscale.RULE,
    copy_is_trained.RULE,
    copy_never_follows.RULE,
)
