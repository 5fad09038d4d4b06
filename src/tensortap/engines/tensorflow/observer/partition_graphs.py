"""Executed graphs as TensorFlow returns them with the metadata of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.engines.tensorflow.observer.dtypes import name_of, unreadable
from tensortap.engines.tensorflow.observer.interface import ExecutedNode

__all__ = ["ChosenGraph", "nodes_of"]

_ADDED = ("__copy_", "__dbg_")  # how TensorFlow calls the nodes that it adds to watch others


@dataclass(frozen=True)
class ChosenGraph:
    """A graph, and what was chosen of it.

    Attributes:
        first: number of its first output.
        places: by tensor name, its place among the outputs.
        dtypes: of the outputs.
        inputs: tensors, by the name of the node.
        chosen: lanes of the outputs.
    """

    first: int
    places: dict[str, int]
    dtypes: list[str]
    inputs: dict[str, list[str]]
    chosen: npt.NDArray[np.uint32]

    def is_unreadable(self, tensor: str) -> bool:
        """Whether a tensor has no elements that can be looked at."""
        return bool(unreadable(self.dtypes[self.places[tensor]]))


def nodes_of(graph_def: Any) -> Iterator[ExecutedNode]:
    """The nodes of a graph without those that TensorFlow added to watch it."""
    copied = {
        node.name: _with_slot(node.input[0]) for node in graph_def.node if node.name.startswith(_ADDED[0])
    }
    for node in graph_def.node:
        if node.name.startswith(_ADDED):
            continue
        inputs = [
            name if name[0] == "^" else copied.get(_with_slot(name).rpartition(":")[0], _with_slot(name))
            for name in node.input
            if not name.startswith(tuple("^" + prefix for prefix in _ADDED))
        ]
        yield ExecutedNode(node.name, node.op, node.device, tuple(inputs), tuple(_output_dtypes(node)))


def _with_slot(name: str) -> str:
    return name if ":" in name or name[0] == "^" else f"{name}:0"


def _output_dtypes(node: Any) -> Iterator[str]:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(node.op)
    for output in () if definition is None else definition.output_arg:
        if output.type_list_attr:
            yield from (name_of(number) for number in node.attr[output.type_list_attr].list.type)
            continue
        number = node.attr[output.type_attr].type if output.type_attr else output.type
        count = node.attr[output.number_attr].i if output.number_attr else 1
        yield from [name_of(number % 100)] * count
