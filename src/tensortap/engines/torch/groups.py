"""Groups of ranks, in the words of a graph: which ranks take part in a collective, and whose value goes where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["readable_group", "with_ranks"]

_GROUPS = ("process_group", "group_name", "group")
_PEERS = ("dst", "src", "root_rank")


def readable_group(argument: Any) -> Any:
    """A group by its name; everything else as it is."""
    if isinstance(argument, torch.ScriptObject):
        try:
            return str(torch.distributed.ProcessGroup.unbox(argument).group_name)
        except (RuntimeError, AttributeError):
            return argument
    return argument


def with_ranks(op_type: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a collective with the numbers that ranks have in the whole job: `ranks`, and `peer`."""
    found = dict(attributes)
    name = next((found[each] for each in _GROUPS if isinstance(found.get(each), str)), None)
    ranks = None if name is None else _ranks_of(name)
    if ranks is None:
        return found
    found["ranks"] = ranks
    place = next((found[each] for each in _PEERS if isinstance(found.get(each), int)), None)
    if place is not None and 0 <= place < len(ranks):
        found["peer"] = ranks[place]
    return found


def _ranks_of(name: str) -> list[int] | None:
    try:
        from torch.distributed import distributed_c10d as c10d

        resolve: Any = c10d.__dict__["_resolve_process_group"]
        group = resolve(name)
        return list(c10d.get_process_group_ranks(group))
    except Exception:  # of a group that is gone, or named by something else
        return None
