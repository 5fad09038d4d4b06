"""`tt.jax.monitor`: hooks around a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tensortap.engines.jax.engine_session import JaxSession, variable_node
from tensortap.engines.jax.paths import named_leaves
from tensortap.engines.jax.tensors import TENSORS
from tensortap.engines.session.block import BlockSession, Monitor

__all__ = ["LoopSession", "monitor"]


class LoopSession(JaxSession, BlockSession):
    """The session behind a monitor: the state belongs to the loop."""

    def __init__(self, state: Callable[[], Any] | None = None, global_step: int = 0) -> None:
        self._read = state or (lambda: None)
        leaves = named_leaves(self._read())
        super().__init__(
            None, global_step, [variable_node(name, leaf) for name, leaf in leaves if TENSORS.is_tensor(leaf)]
        )

    def current_state(self) -> Any:
        """What the loop holds now."""
        return self._read()


def monitor(
    state: Callable[[], Any] | None = None,
    *,
    hooks: Iterable[Any] | None = None,
    global_step: int = 0,
    grace_secs: float = 120.0,
) -> Monitor:
    """Hooks around the runs of a loop that stays as it is.

    Args:
        state: returns the pytree that the loop holds, for hooks that read or save it.
        hooks: called around every run.
        global_step: where to start counting.
        grace_secs: how long threads may take to end.

    >>> import jax.numpy as jnp
    >>> with monitor() as m, m.run("loss") as run:
    ...     run.publish(loss=jnp.ones(3).sum())
    >>> float(run.results)
    3.0
    """
    return Monitor(LoopSession(state, global_step), hooks, grace_secs)
