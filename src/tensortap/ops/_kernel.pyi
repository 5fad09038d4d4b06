"""The native kernel, built from native/; used through `tensortap.ops.kernel`.

Strides are in elements. A tensor with elements but the address 0 is uninitialised.
"""

from typing_extensions import Buffer

TABLE: int
"""First code of the dtypes that are looked up in a table."""

def summary(
    address: int,
    code: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    lower: float,
    upper: float,
    out: Buffer | int | None,
    /,
) -> bytes | None:
    """The summary: 14 + rank float64, written to a buffer or an address, or returned as bytes."""

def summary_address() -> int:
    """Address of `void f(data, code, rank, sizes, strides, lower, upper, row)`, `summary` for callers in C."""

def nan_count(address: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], /) -> int:
    """The number of NaN elements."""

def configure(code: int, number: int, table: bytes | None, /) -> None:
    """Set the number of a dtype in slot 12 and, for one-byte types, the 256 float32 its bytes stand for."""

def isa() -> str:
    """Name of the instruction set in use."""

def isas() -> tuple[str, ...]:
    """Names of those that this processor and build have, the best one last."""

def use_isa(name: str, /) -> None:
    """Use another instruction set: one of `isas()`. For tests, in one thread."""
