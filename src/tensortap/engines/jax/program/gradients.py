"""Which operation each gradient of a program belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensortap.engines.jax.program.parts import Argument, Op, Site, Value
from tensortap.records import Frame

__all__ = ["find_gradients"]

_STEEP = frozenset(
    "sqrt rsqrt cbrt log log1p pow integer_pow div acos asin acosh atanh erf_inv exp tanh logistic".split()  # noqa: SIM905
)
"""Operations whose derivative is not a constant: gradients belong to them rather than to what else is on their line."""

_LOOPS = ("scan", "while", "cond", "loop_carry", "loop_slice")


def find_gradients(ops: Sequence[Op], outputs: Sequence[Value]) -> None:
    """Find the operation that each gradient belongs to.

    Part of a derivative is worked out on the way forward, such as the 0.5/√x of a root: used by nothing but
    gradients, on the line of the root, from its input or output, or from such a part. It counts as a gradient.
    """
    places: dict[tuple[Frame, ...], list[int]] = {}
    for place, op in enumerate(ops):
        if not op.is_backward and op.stack and op.primitive not in _LOOPS:
            places.setdefault(op.stack, []).append(place)
    only_gradients = _used_by_gradients_only(ops, outputs)
    for place, op in enumerate(ops):
        before = [each for each in places.get(op.stack, ()) if each < place]
        if op.is_backward:
            op.forward = _forward_of(ops, op, before)
        elif op.is_differentiated and place in only_gradients and _can_be_early(op):
            steep = _steep(ops, _related(ops, op, before))
            if steep:
                op.forward = steep[-1]  # a derivative is worked out right behind what it belongs to
                op.is_backward = op.is_early = True


def _can_be_early(op: Op) -> bool:
    """Whether an operation may be part of a derivative; what compares, for `max` to choose by, is not."""
    return op.primitive not in _LOOPS and any(site.is_float for site in op.outs)


def _forward_of(ops: Sequence[Op], op: Op, places: Sequence[int]) -> int | None:
    related = [*_related(ops, op, places), *_worked_out_again(ops, op)]
    # What is handed to a loop of gradients, and what a `checkpoint` works out again, is related to nothing by itself.
    alike = [each for each in related if ops[each].primitive == op.primitive]
    found = _steep(ops, related) or alike or related or _steep(ops, places) or places
    return next((each for each in found if not ops[each].is_early), None)


def _steep(ops: Sequence[Op], places: Iterable[int]) -> list[int]:
    """Those that are steep; in the place of a part of a derivative, what it belongs to."""
    owners = (ops[each].forward if ops[each].is_early else each for each in places)
    return [each for each in owners if each is not None and ops[each].primitive in _STEEP]


def _worked_out_again(ops: Sequence[Op], op: Op) -> list[int]:
    """The operations whose results are worked out again, among the gradients, to be given to this one."""
    makers = (ops[each.op] for each in op.inputs if isinstance(each, Site) and each.op >= 0)
    return [
        maker.forward
        for maker in makers
        if maker.is_backward and maker.forward is not None and ops[maker.forward].primitive == maker.primitive
    ]


def _related(ops: Sequence[Op], op: Op, places: Sequence[int]) -> list[int]:
    """Those of some operations that share a tensor with another one: are given it, too, or made it."""
    given = {each for each in op.inputs if isinstance(each, (Site, Argument))}
    return [
        each
        for each in places
        if ops[each] is not op
        and any(
            value in given
            for value in (*ops[each].inputs, *ops[each].outs)
            if isinstance(value, (Site, Argument))
        )
    ]


def _used_by_gradients_only(ops: Sequence[Op], outputs: Sequence[Value]) -> set[int]:
    users: dict[int, list[int]] = {}
    for place, op in enumerate(ops):
        for value in op.inputs:
            if isinstance(value, Site):
                users.setdefault(value.number, []).append(place)
    returned = {value.number for value in outputs if isinstance(value, Site)}
    found: set[int] = set()
    for place in range(len(ops) - 1, -1, -1):
        sites = [site.number for site in ops[place].outs]
        uses = [user for number in sites for user in users.get(number, ())]
        if (
            uses
            and not returned.intersection(sites)
            and all(ops[user].is_backward or user in found for user in uses)
        ):
            found.add(place)
    return found
