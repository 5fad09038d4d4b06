"""Where tapped code delivers what it has seen: to the run that is observed in this thread.

    with collecting(collector):
        step()          # every tapped graph calls collector.before and collector.after

Tapped code asks `current()` once per graph; without a collector it throws its summaries away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tensortap.engines.torch.compiled.graph import TappedGraph

__all__ = ["Collector", "collecting", "current"]


class Collector(Protocol):
    """Receives the graphs that compiled code executes. Must not raise: it is called inside the user's step."""

    def before(self, graph: TappedGraph, inputs: Sequence[Any]) -> Any:
        """The graph is about to run on these inputs; what is returned is handed to `after`."""

    def after(self, call: Any, outputs: Sequence[Any], rows: npt.NDArray[np.float64]) -> None:
        """It has run, made these outputs, and `rows[i]` is the summary of its tap number i."""


_thread = threading.local()


def current() -> Collector | None:
    """The collector of this thread, if its run is being observed."""
    return getattr(_thread, "collector", None)


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Deliver to a collector what tapped code of this thread sees inside the block."""
    previous = current()
    _thread.collector = collector
    try:
        yield
    finally:
        _thread.collector = previous
