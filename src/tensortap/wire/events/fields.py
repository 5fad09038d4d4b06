"""Fields that anybody may have written: what is not as it should be raises `WireError`."""

from __future__ import annotations

import json
import math
from typing import Any

from tensortap.wire.debug_service import WireError

__all__ = [
    "MAX_JSON_BYTES",
    "MAX_NAME_BYTES",
    "bounded",
    "json_object",
    "microseconds",
    "text",
    "texts",
    "whole",
    "within_int64",
]

MAX_NAME_BYTES = 4096
MAX_JSON_BYTES = 1 << 20


def json_object(text: str | bytes) -> dict[str, Any]:
    """What a description says."""
    if len(text) > MAX_JSON_BYTES:
        raise WireError(f"A description of {len(text)} bytes is too long.")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{text[:80]!r} is no JSON: {error}.") from error
    if not isinstance(facts, dict):
        raise WireError(f"{text[:80]!r} is no JSON object.")
    return facts


def whole(facts: dict[str, Any], name: str, default: int) -> int:
    """A field that is a number."""
    value = facts.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise WireError(f"{name[:80]!r} must be a whole number, got {str(value)[:80]!r}.")
    return within_int64(value)


def within_int64(value: int) -> int:
    """A number that files and messages have room for."""
    if not -(2**63) <= value < 2**63:
        raise WireError(f"A number of {value.bit_length()} bits is too large.")
    return value


def text(facts: dict[str, Any], name: str, default: str = "", limit: int = MAX_NAME_BYTES) -> str:
    """A field that is text."""
    value = facts.get(name, default)
    if not isinstance(value, str):
        raise WireError(f"{name!r} must be text, got {str(value)[:80]!r}.")
    return bounded(value, limit)


def texts(facts: dict[str, Any], name: str) -> tuple[str, ...]:
    """A field that is a list of names."""
    value = facts.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WireError(f"{name!r} must be a list of names, got {str(value)[:80]!r}.")
    return tuple(map(bounded, value))


def bounded(name: str, limit: int = MAX_NAME_BYTES) -> str:
    """A name that is one, and not too long."""
    if len(name) > limit:
        raise WireError(f"A name of {len(name)} characters is too long: {name[:80]!r}…")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:  # JSON can spell half a character
            raise WireError(f"{name[:80]!r} is no text.") from error
    return name


def microseconds(wall_time: float) -> int:
    """The time of an event."""
    if not math.isfinite(wall_time) or not -(2.0**63) <= wall_time < 2.0**63:
        raise WireError(f"{wall_time} is no time.")
    return int(wall_time)
