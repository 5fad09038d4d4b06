"""What is wanted of a program, tensor by tensor."""

from __future__ import annotations

import math
from typing import Any

from tensortap.engines.jax.dtypes import READABLE
from tensortap.engines.jax.naming import Named
from tensortap.engines.jax.program import Program
from tensortap.engines.jax.programs import Programs
from tensortap.engines.jax.taps.kinds import PILL, VALUE
from tensortap.engines.jax.taps.rewrite import Wishes
from tensortap.engines.jax.tensors import TENSORS
from tensortap.engines.observe.observation import Observation, RunPlan
from tensortap.ops.debug_ops import DebugNumericSummary

__all__ = ["is_plain_summary", "wishes_for"]


def wishes_for(
    program: Program, named: Named, plan: RunPlan, programs: Programs, seen: Observation
) -> tuple[Wishes, bool]:
    """What to tap and to feed in a program, and whether only what is bad will be recorded of it."""
    if plan.watching is None or plan.taps or plan.captures or plan.feeds:
        return _wishes(program, named, plan, programs, seen)
    known = named.wished.get(plan.watching.publisher.wants)
    if known is None:
        known = named.wished[plan.watching.publisher.wants] = _wishes(program, named, plan, programs, seen)
    found: tuple[Wishes, bool] = known
    return found


def _wishes(
    program: Program, named: Named, plan: RunPlan, programs: Programs, seen: Observation
) -> tuple[Wishes, bool]:
    only_bad = not plan.taps and not plan.captures
    taps: dict[int, int] = {}
    feeds: dict[int, int] = {}
    watching = plan.watching
    for site in program.sites:
        if site.number in program.controls or site.spec.dtype not in READABLE:
            continue
        tensor = named.tensors[site.number]
        node = named.of_op[site.op]
        if plan.taps or tensor in plan.captures:
            taps[site.number] = VALUE
        elif watching is not None:
            wanted = watching.wants(node, site.slot)
            if wanted:
                only_pills = all(is_plain_summary(op) for op, _ in wanted)
                only_bad = only_bad and all(getattr(op, "mute_if_healthy", False) for op, _ in wanted)
                if only_pills and not site.is_float:
                    continue  # an integer is never bad: its numbers would cost as much as those of a float
                taps[site.number] = PILL if only_pills else VALUE
        if tensor in plan.feeds:
            number = programs.feed_number(program, site.number)
            programs.store(
                number,
                TENSORS.fitting(tensor, plan.feeds[tensor], named.of_op[site.op].outputs[site.slot]),
            )
            feeds[site.number] = number
            seen.fed.add(tensor)
    if watching is not None and taps:
        for number in program.leaving:
            if program.sites[number].spec.dtype in READABLE:
                taps.setdefault(number, PILL)
    return Wishes(frozenset(taps.items()), frozenset(feeds.items())), only_bad


def is_plain_summary(op: Any) -> bool:
    """Whether a debug op is a summary without bounds, as taps make them."""
    return (
        type(op) is DebugNumericSummary
        and not math.isfinite(op.lower_bound)
        and not math.isfinite(op.upper_bound)
    )
