"""When to let go of what a session has learned: a process that executes many programs, one after the other.

A test suite, a sweep or a notebook makes a model, trains it for a moment and never comes back to it, while names and
graphs are learned to be met again. So a table that has grown far beyond what a run needs is left behind, with the graph
and all that is known by its names. What is still in use is learned once more, under the same names.
"""

from __future__ import annotations

from tensortap.engines.observe.names import NameTable

__all__ = ["MOST_NAMES", "Forgetting"]

MOST_NAMES = 20_000
"""Names beyond those of a few runs: some tens of megabytes, learned in less than half a second."""

_RUNS_WORTH = 4
_FADING = 0.98


class Forgetting:
    """Decides when the names of a session are too many.

    >>> forgetting = Forgetting(most_names=2)
    >>> names = NameTable()
    >>> for scope in ("one/", "two/", "three/"):
    ...     _ = names.next(scope, "add")
    >>> forgetting.is_due(names)
    True
    """

    def __init__(self, most_names: int = MOST_NAMES) -> None:
        self._most_names = most_names
        self._largest = 0.0
        self._before: frozenset[str] = frozenset()

    def note_run(self, nodes: int) -> None:
        """A run has had so many nodes; large ones are remembered for a while."""
        self._largest = max(float(nodes), self._largest * _FADING)

    def is_due(self, names: NameTable) -> bool:
        """Whether to begin with a new table."""
        if len(names) <= self._most_names + _RUNS_WORTH * self._largest:
            return False
        known, self._before = self._before, names.taken()
        if 2 * len(known & self._before) > len(self._before):
            self._most_names *= 2  # most of what was let go has come back: the program goes in circles
            return False
        return True
