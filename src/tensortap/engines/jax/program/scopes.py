"""The scopes that an equation is in, from JAX's stack of names."""

from __future__ import annotations

import re

__all__ = ["cleaned", "joined", "scope_of"]

_TRANSFORM = re.compile(r"\b\w+\(([^()]*)\)")
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.\-/]")


def scope_of(stack: str) -> tuple[str, bool]:
    """The scopes of a name stack without the transformations around them, and whether it is a gradient's.

    >>> scope_of("transpose(jvp(Model))/Dense_0")
    ('Model/Dense_0/', True)
    """
    backward = "transpose(" in stack
    while (plain := _TRANSFORM.sub(r"\1", stack)) != stack:
        stack = plain
    return joined("", cleaned(stack)), backward


def cleaned(text: str) -> str:
    """A text without what cannot be part of a name."""
    return "/".join(part for part in _UNUSABLE.sub("_", text).split("/") if part.strip("_"))


def joined(scope: str, inner: str) -> str:
    """A scope inside another one, ending in a slash; nothing stays nothing."""
    return f"{scope}{inner.rstrip('/')}/" if inner.rstrip("/") else scope
