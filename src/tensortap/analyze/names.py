"""What a user may have meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

from tensortap.suggest import nearest

__all__ = ["full_name", "meant"]


def full_name(name: str) -> str:
    """The name of a tensor, where that of a node stands for its first output.

    >>> full_name("model/fc/addmm"), full_name("split:1")
    ('model/fc/addmm:0', 'split:1')
    """
    return name if ":" in name else f"{name}:0"


def meant(name: str, candidates: Iterable[str], count: int = 3) -> str:
    """A sentence that suggests names: similar ones, else those that contain it, else where to find them all.

    >>> meant("model/fc/adddm:0", ["model/fc/addmm:0", "loss"])
    " Did you mean 'model/fc/addmm:0'?"
    >>> meant("conv:0", ["model/fc/addmm:0", "model/encoder/layers/0/conv_depthwise:0"])
    " Names that contain it: 'model/encoder/layers/0/conv_depthwise:0'."
    """
    pool = sorted(set(candidates))
    found = nearest(name, pool, count)
    if found:
        return found
    part = name.rpartition(":")[0] or name
    for text in (part.lower(), part.lower().rpartition("/")[2]):
        containing = [each for each in pool if text and text in each.lower()]
        if containing:
            more = f" and {len(containing) - count} more" if len(containing) > count else ""
            return f" Names that contain it: {', '.join(map(repr, containing[:count]))}{more}."
    if not pool:
        return " Nothing was recorded in this run."
    return f" There are {len(pool)}, such as {pool[0]!r}; `tensortap ls DIR --run -1` lists them."
