"""Numbers as people say them, for the sentences of causes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["count", "some"]


def count(number: float, of: float, what: str) -> str:
    """`3 of 24 elements are zero`, as people say it.

    >>> count(1, 24, "zero"), count(24, 24, "zero")
    ('1 of 24 elements is zero', 'all 24 elements are zero')
    """
    if number == of:
        return f"all {int(of)} elements are {what}" if of > 1 else f"the only element is {what}"
    return f"{int(number)} of {int(of)} elements {'is' if number == 1 else 'are'} {what}"


def some(names: Sequence[str]) -> str:
    """`a:0`, or `3 tensors such as a:0`."""
    return names[0] if len(names) == 1 else f"{len(names)} tensors such as {names[0]}"
