"""Which tensors need not be looked at: those whose badness would show in one that is.

A NaN or an infinity that is added, multiplied or summed stays one. So if the result of such an operation is good, its
inputs were; only where badness can end (a maximum, `where`, `exp`, a divisor, the results of the program) must somebody
look. When only bad tensors are to be recorded, that is enough to know that there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensortap.engines.jax.program import Argument, Op, Program, Site, Value
from tensortap.engines.jax.taps.bounds import Bounds, settled_by

__all__ = ["Telling", "enough", "telling"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALL_OPERANDS = _words(
    """
    abs add add_any broadcast_in_dim cbrt concatenate convert_element_type conv_general_dilated copy copy_p cos cumsum
    cumprod dot_general expand_dims log log1p mul neg optimization_barrier reduce_prod reduce_sum reshape rev
    sharding_constraint sin sqrt square squeeze stop_gradient sub transpose
    """
)
"""Operations whose result is bad if anything they are given is."""

_FIRST_OPERAND = frozenset(["div", "integer_pow", "pad", "scatter-add"])
"""Operations whose result is bad if what they are given first is."""


def enough(program: Program, wanted: Iterable[int], with_bounds: bool = True) -> Mapping[int, Bounds | None]:
    """What must be looked at to know that all of the wanted sites are good.

    Args:
        program: whose sites they are.
        wanted: their numbers.
        with_bounds: large divisors may be left out, if what they are made of is looked at and within bounds.

    Returns:
        Bounds by the numbers of sites; None where it is enough that a tensor is finite.
    """
    wanted = frozenset(wanted)
    shown: set[int] = set()
    divisors: set[int] = set()
    for op in reversed(program.ops):
        if not all(site.number in wanted or site.number in shown for site in op.outs):
            continue  # nobody looks at what it would show in
        if _shows(op):
            shown.update(value.number for value in _operands(op) if value.is_float)
        if op.primitive == "div" and all(_is_filled(site) for site in op.outs):
            divisors.update(value.number for value in op.inputs[1:] if isinstance(value, Site))
    looked_at: dict[int, Bounds | None] = dict.fromkeys(wanted - shown)
    if with_bounds:
        makers = {site.number: op for op in program.ops for site in op.outs}
        results = {value.number for value in program.outputs if isinstance(value, Site)}
        for number in sorted(divisors & looked_at.keys() - results):
            bounds = settled_by(program.sites[number], makers, results)
            if bounds is not None:
                del looked_at[number]
                for place, each in bounds.items():
                    looked_at[place] = each.and_(looked_at.get(place) or Bounds())
    return looked_at


@dataclass(frozen=True)
class Telling:
    """What tells whether the results of a program are good.

    Attributes:
        results: places of the results that must be looked at. Of Adam's state the first moments need not be, for
            example: what is bad in them is bad in the parameters.
        arguments: places of arguments that show in these: if one is bad, so is one of the results.
    """

    results: frozenset[int]
    arguments: frozenset[int]


def telling(program: Program) -> Telling:
    """What tells whether the results of a program are good."""
    results = {value.number for value in program.outputs if isinstance(value, Site)}
    shown: set[int] = set()  # what shows in a result
    arguments: set[int] = set()
    for op in reversed(program.ops):
        if op.loops or not _shows(op) or not all(_is_filled(site) for site in op.outs):
            continue
        if any(site.number in shown or site.number in results for site in op.outs):
            shown.update(value.number for value in _operands(op) if value.is_float)
            arguments.update(
                value.place for value in _given(op) if isinstance(value, Argument) and not value.is_constant
            )
    return Telling(
        frozenset(
            place
            for place, value in enumerate(program.outputs)
            if not isinstance(value, Site) or value.number not in shown
        ),
        frozenset(arguments),
    )


def _is_filled(site: Site) -> bool:
    return all(site.spec.shape)


def _shows(op: Op) -> bool:
    """Whether badness of the inputs stays to be seen in the output."""
    if op.primitive == "integer_pow" and not float(op.attributes.get("y", -1)) > 0:
        return False
    return (op.primitive in _ALL_OPERANDS or op.primitive in _FIRST_OPERAND) and all(
        site.is_float for site in op.outs
    )


def _operands(op: Op) -> list[Site]:
    return [value for value in _given(op) if isinstance(value, Site)]


def _given(op: Op) -> tuple[Value, ...]:
    return op.inputs if op.primitive in _ALL_OPERANDS else op.inputs[:1]
