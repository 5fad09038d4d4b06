"""What built-in hooks ask of the graph in `begin`, and of a session in between."""

from __future__ import annotations

from typing import Any

from tensortap.records import Node, split_tensor_name
from tensortap.seam.graph import GLOBAL_STEP, TensorRef, get_default_graph

__all__ = ["as_fetch", "global_step_name", "read_step"]


def as_fetch(item: Any) -> Any:
    """What to fetch for a tensor that a user named.

    References and nodes, and names that the graph knows, become full tensor names. Any other text may be a
    key of what the step returns, which only the session knows, and is left as it is.

    Raises:
        ValueError: a tensor of another graph, or a node with several outputs and no slot.
    """
    graph = get_default_graph()
    if isinstance(item, (TensorRef, Node)) or (isinstance(item, str) and split_tensor_name(item)[0] in graph):
        return graph.as_tensor_name(item)
    return item


def global_step_name(hook: object) -> str:
    """Tensor name of the global step of the default graph.

    While there is no session, because its creator makes it after `begin`, this is the name that every engine uses.

    Raises:
        RuntimeError: the engine keeps no global step.
    """
    graph = get_default_graph()
    if graph.global_step is not None:
        return graph.global_step
    if graph.has_session:
        raise RuntimeError(
            f"{type(hook).__name__} needs a global step, but the session keeps none: its engine must set "
            f"`graph.global_step` to the name of one, such as {GLOBAL_STEP!r}."
        )
    return GLOBAL_STEP


def read_step(session: Any, name: str) -> int:
    """The global step at this moment; it is state, so reading it executes nothing."""
    return int(session.run(name))
