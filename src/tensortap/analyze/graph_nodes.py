"""The nodes of a stored graph, made from their messages when they are asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensortap.analyze.handed_on import handed_on
from tensortap.dtypes import DTYPE_NAMES
from tensortap.phases import phase_of
from tensortap.records import Frame, Node, TensorSpec, split_tensor_name
from tensortap.wire.graph_def import read_attribute

__all__ = ["GraphNodes", "node_of_proto"]

_frame = functools.cache(Frame.of_text)


class GraphNodes(Mapping[str, Node]):
    """Nodes made from their messages when they are asked for."""

    def __init__(self, messages: dict[str, Any]) -> None:
        self._messages = messages
        self._nodes: dict[str, Node] = {}
        self._phases: dict[str, str] = {}

    def __getitem__(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            node = node_of_proto(self._messages[name])
            if name in self._handed:
                node = replace(node, inputs=self._handed[name])
            self._nodes[name] = node
        return node

    def inputs(self, name: str) -> Sequence[str]:
        """Tensors a node takes, also out of a list or a stack."""
        return self._handed[name] if name in self._handed else self._named_inputs(name)

    def _named_inputs(self, name: str) -> list[str]:
        return _tensor_names(self._messages[name].input)

    def _waits_for(self, name: str) -> list[str]:
        return [each[1:] for each in self._messages[name].input if each[:1] == "^"]

    @functools.cached_property
    def _handed(self) -> dict[str, tuple[str, ...]]:
        return handed_on(self.op_types(), self._named_inputs, self._waits_for)

    def writes(self, name: str) -> bool | None:
        """Whether a node writes into inputs; None if that is not told."""
        attributes = self._messages[name].attr if name in self._messages else {}
        return "_writes" in attributes if "_phase" in attributes else None

    def phase(self, name: str) -> str:
        """The phase of a node, which need not be made for it; empty if it is not there."""
        known = self._phases.get(name)
        if known is None:
            message = self._messages.get(name)
            if message is None:
                return ""
            told = message.attr["_phase"].s.decode() if "_phase" in message.attr else phase_of(self[name])
            known = self._phases[name] = told
        return known

    def forward(self, name: str) -> str | None:
        """The node that a node is the gradient of, which need not be made for it; None if that is not told."""
        attributes = self._messages[name].attr
        return attributes["_forward"].s.decode() if "_forward" in attributes else None

    def op_types(self) -> dict[str, str]:
        """Op types of all nodes."""
        return {name: message.op for name, message in self._messages.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._messages

    def __iter__(self) -> Iterator[str]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)


def node_of_proto(message: Any) -> Node:
    """A node of a GraphDef, whichever engine wrote it."""
    attributes = message.attr
    frames = (
        [each.decode("utf-8", "replace") for each in attributes["_source"].list.s]
        if "_source" in attributes
        else []
    )
    dtypes = attributes["_output_dtypes"].list.type if "_output_dtypes" in attributes else ()
    shapes = attributes["_output_shapes"].list.shape if "_output_shapes" in attributes else ()
    specs = [
        TensorSpec(
            DTYPE_NAMES.get(number, "unknown"), tuple(None if d.size < 0 else d.size for d in shape.dim)
        )
        for number, shape in zip(dtypes, shapes, strict=False)
    ]
    told = "_phase" in attributes
    return Node(
        message.name,
        message.op,
        inputs=tuple(_tensor_names(message.input)),
        control_inputs=tuple(each[1:] for each in message.input if each[:1] == "^"),
        outputs=tuple(specs),
        device=message.device,
        attributes=_Attributes(attributes),
        stack=tuple(frame for frame in map(_frame, frames) if frame is not None),
        forward=attributes["_forward"].s.decode() if "_forward" in attributes else None,
        is_view=told and "_views" in attributes,
        phase=attributes["_phase"].s.decode("utf-8", "replace") if told else "",
        module=attributes["_module"].s.decode("utf-8", "replace") if "_module" in attributes else None,
        writes=tuple(attributes["_writes"].list.i) if "_writes" in attributes else (),
    )


def _tensor_names(inputs: Iterable[str]) -> list[str]:
    """Inputs with their slots, which GraphDef leaves out if they are 0."""
    return [
        name if name[-2:-1] == ":" or split_tensor_name(name)[1] is not None else f"{name}:0"
        for name in inputs
        if name[:1] != "^"
    ]


class _Attributes(Mapping[str, Any]):
    """The arguments of a node, made from their messages when they are asked for."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    def __getitem__(self, key: str) -> Any:
        if key not in self._messages or not _is_argument(key):
            raise KeyError(key)
        return read_attribute(self._messages, key)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self._messages if _is_argument(key)])

    def __len__(self) -> int:
        return sum(map(_is_argument, self._messages))


def _is_argument(key: str) -> bool:
    return key[:1] != "_" and key != "T"
