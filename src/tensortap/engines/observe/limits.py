"""How much of one run is recorded, so that a run of any length costs a bounded time, and its graph a bounded memory.

An operation that is new costs a name, a node and a line of source, some twenty times what it costs to recognise it
later. A run that goes over a limit is recorded up to there; of the rest the operations are counted, and the complete
gradients of parameters still looked at. The next run knows what this one has learned, and comes further.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOST_NEW", "MOST_NODES", "Limits"]

MOST_NODES = 100_000
"""Nodes of one run."""

MOST_NEW = 40_000
"""Nodes of one run that have to be built, because they were never seen or are no longer what they were:
about a second. A model of more operations is known whole after a few runs."""


@dataclass
class Limits:
    """Where the record of a run ends.

    Attributes:
        nodes: most nodes of a run.
        new: most of them that have to be built.
        outside: most nodes of a run as long as it has called no module.
        reached: whether the run that began last has gone over one of them; set by whoever observes it.

    >>> Limits(nodes=10, new=5).are_over(nodes=3, new=5, in_modules=True)
    True
    """

    nodes: int = MOST_NODES
    new: int = MOST_NEW
    outside: int = MOST_NODES
    reached: bool = False

    def are_over(self, nodes: int, new: int, in_modules: bool) -> bool:
        """Whether a run that has come so far is recorded no further."""
        return nodes >= self.nodes or new >= self.new or (not in_modules and nodes >= self.outside)
