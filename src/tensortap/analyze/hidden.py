"""What a `where` hides: values that it does not choose, whose gradients come back all the same.

To what is not chosen, `where` hands back a gradient of zero. If the derivative there is infinite, or there is none,
zero times that is NaN. The signs of it are a NaN among the gradients that was made of something bad and of zeros, and
zeros that a `where` among the gradients has put there; or a bad value that gets no further than to a `where`.
"""

from __future__ import annotations

from tensortap.analyze.run_facts import RunFacts
from tensortap.phases import phase_of
from tensortap.records import Node, split_tensor_name

__all__ = ["is_hidden"]

_FARTHEST = 60
_CARRYING = frozenset("mul div neg add sub sum mean expand to_copy".split())  # noqa: SIM905
"""What a gradient goes through without losing its zeros."""


def is_hidden(facts: RunFacts, node: Node, tensor: str) -> bool:
    """Whether a bad tensor does harm by its gradient only: a `where` keeps it, or what it belongs to, from the rest."""
    if phase_of(node) != "backward":
        is_hidden = _ends_at_choices(facts, tensor) and _has_bad_gradients(facts)
        return is_hidden or (_is_for_gradients(facts, tensor) and _meets_zeros(facts, tensor))
    if _has_nan(facts, tensor) and _was_given_zeros(facts, node):
        return True
    forward = facts.forward_of(node)
    return _meets_zeros(facts, tensor) or (forward is not None and _makes_what_is_hidden(facts, forward))


def _ends_at_choices(facts: RunFacts, tensor: str) -> bool:
    """Whether all that is made of a bad value on the way forward is good again behind a `where`."""
    pending, seen, is_chosen_from = [tensor], {tensor}, False
    for _ in range(_FARTHEST):
        if not pending:
            return is_chosen_from
        users = [user for user, _ in facts.consumers(pending.pop(0)) if phase_of(user) == "forward"]
        if not users:
            return False  # a result
        for user in users:
            shown = [each for each in facts.outputs_of(user) if each not in seen]
            bad = [each for each in shown if facts.is_bad(each) or facts.is_view(user)]
            is_chosen_from |= not bad and facts.operation(user).name == "where"
            pending += bad
            seen.update(bad)
    return False


def _makes_what_is_hidden(facts: RunFacts, node: Node) -> bool:
    """Whether the good result of a node is made into something bad that is hidden: a norm is divided by."""
    pending = facts.outputs_of(node)
    for _ in range(_FARTHEST):
        if not pending:
            break
        for user, _ in facts.consumers(pending.pop(0)):
            if phase_of(user) == "forward":
                made = facts.outputs_of(user)
                bad = next(filter(facts.is_bad, made), None)
                if bad is not None:
                    return _ends_at_choices(facts, bad)
                pending += made if facts.is_view(user) else ()
    return False


def _meets_zeros(facts: RunFacts, tensor: str) -> bool:
    """Whether the zeros of a `where` became NaN by a bad gradient, or by what was made of it."""
    pending, seen = [tensor], {tensor}
    for _ in range(_FARTHEST):
        if not pending:
            break
        for user, _ in facts.consumers(pending.pop(0)):
            if phase_of(user) not in ("forward", "backward"):  # forward: out of a loop, into one of gradients
                continue
            made = [each for each in facts.outputs_of(user) if facts.is_bad(each) and each not in seen]
            if any(_has_nan(facts, each) for each in made) and _was_given_zeros(facts, user):
                return True
            pending += made
            seen.update(made)
    return False


def _was_given_zeros(facts: RunFacts, node: Node) -> bool:
    """Whether a `where` among the gradients has put zeros into one of the good inputs of a node."""
    for tensor in node.inputs:
        health = facts.health_given(tensor, node)
        if (health is None or (health.zero and not health.is_bad)) and _comes_of_choice(facts, tensor):
            return True
    return False


def _comes_of_choice(facts: RunFacts, tensor: str) -> bool:
    pending = [tensor]
    for _ in range(_FARTHEST):
        if not pending:
            break
        node = facts.node_of(pending.pop(0))
        if node is None or phase_of(node) != "backward":
            continue
        operation = facts.operation(node)
        if operation.name == "where":
            return True
        if facts.is_view(node):
            pending += node.inputs[:1]
        elif operation.name in _CARRYING:
            pending += node.inputs
    return False


def _is_for_gradients(facts: RunFacts, tensor: str) -> bool:
    return all(phase_of(user) == "backward" for user, _ in facts.consumers(tensor))


def _has_bad_gradients(facts: RunFacts) -> bool:
    return any(
        facts.phase(split_tensor_name(tensor)[0]) == "backward" and facts.is_bad(tensor)
        for tensor in facts.tensors
    )


def _has_nan(facts: RunFacts, tensor: str) -> bool:
    health = facts.health(tensor)
    return health is not None and bool(health.nan)
