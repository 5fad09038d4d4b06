"""TensorFlow's numbers of dtypes, in the words of everybody else."""

from __future__ import annotations

from collections.abc import Sequence

from tensortap.dtypes import DTYPE_NAMES
from tensortap.engines.tensorflow.observer.interface import Kind, Lane
from tensortap.ops.dtypes import CODES

__all__ = ["STRING", "code_of", "lanes_for", "name_of", "unreadable"]

STRING = "string"

_NAMES = {
    **DTYPE_NAMES,
    20: "resource",
    21: "variant",
    26: "float8_e4m3fnuz",
    27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
    33: "float4_e2m1fn",
    # Quantised integers are integers; what they stand for is known to the graph only.
    11: "int8",
    12: "uint8",
    13: "int32",
    15: "int16",
    16: "uint16",
}


def name_of(number: int) -> str:
    """The name of a dtype.

    >>> name_of(14), name_of(20), name_of(99)
    ('bfloat16', 'resource', 'dtype 99')
    """
    return _NAMES.get(number, f"dtype {number}")


def code_of(name: str) -> int:
    """The code that the kernel knows it by, or -1."""
    return CODES.get(name, -1)


def unreadable(name: str) -> str:
    """Why there is no health pill of a tensor of this dtype; "" if there is one.

    >>> unreadable("float32"), unreadable("resource")
    ('', 'a resource has no elements')
    """
    if code_of(name) >= 0:
        return ""
    return "strings have no pill" if name == STRING else f"a {name} has no elements"


def lanes_for(name: str, lanes: Sequence[Lane]) -> int:
    """The lanes that a tensor of this dtype can be recorded in, as bits: all, none, or the whole values of strings.

    >>> lanes = Lane(Kind.PILL), Lane(Kind.VALUE)
    >>> lanes_for("float32", lanes), lanes_for("string", lanes), lanes_for("resource", lanes)
    (3, 2, 0)
    """
    if name != STRING and unreadable(name):
        return 0
    return sum(1 << number for number, lane in enumerate(lanes) if name != STRING or lane.kind is Kind.VALUE)
