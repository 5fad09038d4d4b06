"""Suggestions for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["alternatives", "nearest"]


MOST_COMPARED = 20_000
"""Names; comparing more takes longer than anybody waits for a suggestion."""


def nearest(name: str, candidates: Iterable[str], count: int = 3) -> str:
    """A sentence that suggests the most similar names, or nothing.

    >>> nearest("model/fc/adddm", ["model/fc/addmm", "model/conv"])
    " Did you mean 'model/fc/addmm'?"
    """
    pool = list(candidates)
    # Long graphs share long prefixes, which makes everything look similar: prefer names with the same last
    # part, then fall back to overall similarity.
    tail = name.rsplit("/", 1)[-1]
    same_tail = [each for each in pool if each.rsplit("/", 1)[-1] == tail][:MOST_COMPARED]
    found = difflib.get_close_matches(name, same_tail, count, 0.3) if len(tail) > 1 else []
    if len(found) < count and len(pool) <= MOST_COMPARED:
        found += [m for m in difflib.get_close_matches(name, pool, count, 0.6) if m not in found]
    if not found:
        return ""
    listed = [repr(each) for each in found[:count]]
    return f" Did you mean {alternatives(listed)}?"


def alternatives(words: Sequence[str]) -> str:
    """Words of which one is meant.

    >>> alternatives(["a", "b", "c"])
    'a, b or c'
    """
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
