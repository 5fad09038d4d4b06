"""Graphs as `GraphDef` messages, the form TensorBoard and tfdbg read.

The message has room for floats of 32 bits only. A number that does not fit, such as a learning rate of 0.1 or the
smallest double, is written as it fits, for whoever reads the field's message, and once more as text in an attribute
`_exact_<name>`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, cast

from tensortap.dtypes import DTYPE_NUMBERS
from tensortap.records import Node

__all__ = ["GraphEncoder", "nodes_to_proto", "read_attribute"]

_EXACT = "_exact_"
_FORWARD, _MODULE, _LAST = "_forward", "_module", "\U0010ffff"
_KINDS_KEPT = 2000


def nodes_to_proto(nodes: Iterable[Node]) -> Any:
    """Nodes as a GraphDef, in the given order, each name once."""
    from tensortap.wire.messages import GraphDef

    message = GraphDef()
    message.versions.producer = 1
    seen: set[str] = set()
    for node in nodes:
        if node.name not in seen:
            seen.add(node.name)
            _write_node(node, message.node.add())
    return message


class GraphEncoder:
    """Encodes graphs of which most nodes were in the one before, or are like others: only what is new is encoded.

    >>> node = Node("x", "Placeholder")
    >>> GraphEncoder().encoded([node]) == nodes_to_proto([node]).SerializeToString(deterministic=True)
    True
    """

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._pieces: dict[int, bytes] = {}
        """Of the graph before, by the identity of its nodes."""
        self._kinds: dict[tuple[Any, ...], _Kind] = {}

    def encoded(self, nodes: Iterable[Node]) -> bytes:
        """The bytes of the GraphDef that `nodes_to_proto` makes."""
        from tensortap.wire.messages import GraphDef

        listed = list(nodes)
        if len({node.name for node in listed}) < len(listed):
            first: dict[str, Node] = {}
            for node in listed:
                first.setdefault(node.name, node)
            listed = list(first.values())
        pieces = list(map(self._pieces.get, map(id, listed)))
        for place, node in enumerate(listed):
            if pieces[place] is None:
                # A message is the sequence of its fields, so a graph of one node is a piece of any graph.
                pieces[place] = _field(1, self._kind_of(node).encoded(node))
        known = cast("list[bytes]", pieces)
        self._nodes, self._pieces = listed, dict(zip(map(id, listed), known, strict=True))
        end = GraphDef()
        end.versions.producer = 1
        return b"".join([*known, end.SerializeToString()])

    def _kind_of(self, node: Node) -> _Kind:
        # The layers of a model share these objects, which are kept as long as their identities stand for them.
        attributes = id(node.attributes) if node.attributes else 0
        key = (attributes, id(node.outputs), id(node.stack), *_told(node))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _KINDS_KEPT:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(node)
        return kind


_told = attrgetter("op_type", "device", "phase", "is_view", "writes")


class _Kind:
    """What is the same in the messages of nodes that differ only in their names, and those of what they refer to."""

    def __init__(self, like: Node) -> None:
        from tensortap.wire.messages import GraphDef

        self._kept = (like.attributes, like.outputs, like.stack)
        self._op = _field(2, like.op_type.encode()) if like.op_type else b""
        self._device = _field(4, like.device.encode()) if like.device else b""
        message = GraphDef().node.add()
        _write_node(replace(like, forward=None, module=None), message)
        # Entries of a map are written in the order of their keys.
        entries = {key: _entry(key, value.SerializeToString()) for key, value in sorted(message.attr.items())}
        self._before, self._between, self._after = (
            b"".join(entry for key, entry in entries.items() if lower < key < upper)
            for lower, upper in (("", _FORWARD), (_FORWARD, _MODULE), (_MODULE, _LAST))
        )

    def encoded(self, node: Node) -> bytes:
        """The NodeDef of a node of this kind."""
        pieces = [_field(1, node.name.encode()), self._op] if node.name else [self._op]
        pieces += [_field(3, each.removesuffix(":0").encode()) for each in node.inputs]
        pieces += [_field(3, f"^{each}".encode()) for each in node.control_inputs]
        pieces += (self._device, self._before)
        if node.forward is not None:
            pieces.append(_text_entry(_FORWARD, node.forward))
        pieces.append(self._between)
        if node.phase and node.module is not None:
            pieces.append(_text_entry(_MODULE, node.module))
        pieces.append(self._after)
        return b"".join(pieces)


_SHORT_HEADS = [[bytes((number << 3 | 2, length)) for length in range(0x80)] for number in range(6)]


def _field(number: int, content: bytes) -> bytes:
    """A field that has a length: text, bytes or a message."""
    length = len(content)
    if length < 0x80:
        return _SHORT_HEADS[number][length] + content
    head = bytearray((number << 3 | 2,))
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + content


def _entry(key: str, value: bytes) -> bytes:
    """An entry of the map of attributes."""
    return _field(5, _field(1, key.encode()) + _field(2, value))


@lru_cache(maxsize=4096)
def _text_entry(key: str, text: str) -> bytes:
    return _entry(key, _field(2, text.encode()))


def _write_node(node: Node, message: Any) -> None:
    message.name = node.name
    message.op = node.op_type
    message.device = node.device
    # GraphDef spells output 0 without its slot and control inputs with a caret.
    message.input.extend(name.removesuffix(":0") for name in node.inputs)
    message.input.extend(f"^{name}" for name in node.control_inputs)
    for key, value in node.attributes.items():
        _write_attribute(value, message.attr[key])
        _write_exact(key, value, message.attr)
    for spec in node.outputs:
        shape = message.attr["_output_shapes"].list.shape.add()
        for size in spec.shape:
            shape.dim.add(size=-1 if size is None else size)
    if node.outputs:
        number = DTYPE_NUMBERS.get(node.outputs[0].dtype, 0)
        message.attr["T"].type = number
        message.attr["_output_dtypes"].list.type.extend(DTYPE_NUMBERS.get(s.dtype, 0) for s in node.outputs)
    if node.forward is not None:
        message.attr[_FORWARD].s = node.forward.encode()
    if node.phase:
        message.attr["_phase"].s = node.phase.encode()
        if node.module is not None:
            message.attr[_MODULE].s = node.module.encode()
        if node.is_view:
            message.attr["_views"].i = 0  # the place of the input
        if node.writes:
            message.attr["_writes"].list.i.extend(node.writes)
    if node.source is not None:
        message.attr["_source"].list.s.extend(str(frame).encode() for frame in node.stack)


def _write_attribute(value: Any, message: Any) -> None:
    if isinstance(value, bool):
        message.b = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        message.i = value
    elif isinstance(value, float):
        message.f = value
    elif isinstance(value, list):
        _write_list(value, message.list)
    else:
        message.s = str(value).encode()


def _write_exact(key: str, value: Any, attributes: Any) -> None:
    """Write floats as text that do not come back as they were."""
    kind = attributes[key].WhichOneof("value")
    if kind == "f" and attributes[key].f != value:
        attributes[_EXACT + key].s = repr(value).encode()
    elif kind == "list" and attributes[key].list.f and list(attributes[key].list.f) != value:
        attributes[_EXACT + key].list.s.extend(repr(each).encode() for each in value)


def read_attribute(attributes: Any, key: str) -> Any:
    """An argument of a node in a message, whichever engine wrote it.

    >>> graph = nodes_to_proto([Node("n", "op", attributes={"lr": 0.1})])
    >>> read_attribute(graph.node[0].attr, "lr")
    0.1
    """
    message = attributes[key]
    kind = message.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(message, kind)
    if kind == "s":
        return value.decode("utf-8", "replace")
    exact = attributes.get(_EXACT + key)
    if kind == "list":
        if exact is not None:
            return [float(each) for each in exact.list.s]
        for part in ("i", "f", "b", "s", "type"):
            items = list(getattr(value, part))
            if items:
                return [each.decode("utf-8", "replace") if part == "s" else each for each in items]
        return []
    if exact is not None:
        return float(exact.s)
    return value if kind in ("i", "f", "b", "type") else str(value)


def _write_list(values: list[Any], message: Any) -> None:
    if all(isinstance(each, bool) for each in values):
        message.b.extend(values)
    elif all(isinstance(each, int) and -(2**63) <= each < 2**63 for each in values):
        message.i.extend(values)
    elif all(isinstance(each, float) for each in values):
        message.f.extend(values)
    else:
        message.s.extend(str(each).encode() for each in values)
