"""The text form of a debug op: `Name`, or `Name(key=value; key=value)`.

Whitespace around names, keys and values does not count, nor do empty segments between semicolons. What the
keys mean is decided by the op; here only the form is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensortap.errors import InvalidArgumentError

__all__ = ["DebugOpText", "format_debug_op", "parse_debug_op"]


@dataclass(frozen=True, slots=True)
class DebugOpText:
    """A debug op as it was written: its name and its attributes, all as text.

    >>> DebugOpText("DebugNumericSummary", {"mute_if_healthy": "true"}).name
    'DebugNumericSummary'
    """

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)


def parse_debug_op(text: str) -> DebugOpText:
    """Read the text form of a debug op.

    Raises:
        InvalidArgumentError: malformed text; the message quotes it and says what is wrong.

    >>> parse_debug_op("DebugNumericSummary(lower_bound=-1; mute_if_healthy=true)").attributes
    {'lower_bound': '-1', 'mute_if_healthy': 'true'}
    >>> parse_debug_op("DebugIdentity")
    DebugOpText(name='DebugIdentity', attributes={})
    """
    if not isinstance(text, str):
        raise TypeError(f"A debug op is text such as 'DebugIdentity', got {type(text).__name__}: {text!r}.")
    name, parenthesis, rest = text.strip().partition("(")
    name = name.strip()
    if not name:
        raise _malformed(text, "it has no name")
    if ")" in name:
        raise _malformed(text, "it closes a parenthesis that was not opened")
    if not parenthesis:
        if any(each in name for each in "=; \t\n"):
            raise _malformed(text, "attributes stand in parentheses after the name")
        return DebugOpText(name)
    if not rest.endswith(")") or ")" in rest[:-1] or "(" in rest:
        raise _malformed(text, "it needs exactly one pair of parentheses, the closing one at its end")
    attributes: dict[str, str] = {}
    for segment in rest[:-1].split(";"):
        if not segment.strip():
            continue
        key, equals, value = (each.strip() for each in segment.partition("="))
        if not equals:
            raise _malformed(text, f"{segment.strip()!r} has no '='")
        if not key or not value:
            raise _malformed(text, f"{segment.strip()!r} has no {'key' if not key else 'value'}")
        if key in attributes:
            raise _malformed(text, f"{key!r} is given twice")
        attributes[key] = value
    return DebugOpText(name, attributes)


def format_debug_op(name: str, attributes: Mapping[str, object] | None = None) -> str:
    """The text form that `parse_debug_op` reads back.

    >>> format_debug_op("DebugNumericSummary", {"upper_bound": 10, "mute_if_healthy": True})
    'DebugNumericSummary(upper_bound=10; mute_if_healthy=true)'
    >>> format_debug_op("DebugIdentity")
    'DebugIdentity'
    """
    if not attributes:
        return name
    pairs = (f"{key}={_as_text(value)}" for key, value in attributes.items())
    return f"{name}({'; '.join(pairs)})"


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _malformed(text: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        None, f"Malformed debug op {text!r}: {why}. Write Name or Name(key=value; key=value)."
    )
