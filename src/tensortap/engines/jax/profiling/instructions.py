"""The instructions of the executables in a profile, and the labels of what each was made of.

The profiler puts the compiled programs beside its events, as messages of XLA. Of these only names are needed, so the
few fields are read where they lie: numbers of fields do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensortap.engines.jax.profiling.labels import Label, labels_in

__all__ = ["Instruction", "instructions_of"]

_METADATA_PLANE = b"/host:metadata"
_HLO = (b"Hlo Proto", b"hlo_proto")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of an executable.

    Attributes:
        opcode: of XLA, such as `fusion` or `dot`.
        labels: of the operations it was made of, that of its result first.
    """

    opcode: str
    labels: tuple[Label, ...]


def instructions_of(profile: bytes) -> dict[str, dict[str, Instruction]]:
    """Instructions by program, `name(number)`, and their own name, from a serialized profile (`XSpace`)."""
    found: dict[str, dict[str, Instruction]] = {}
    for plane in _messages(profile, 1):
        if next(_messages(plane, 2), b"") != _METADATA_PLANE:
            continue
        kinds = {
            number: next(_messages(value, 2), b"")
            for entry in _messages(plane, 5)
            for number, value in [_entry(entry)]
        }
        for entry in _messages(plane, 4):
            _, metadata = _entry(entry)
            for stat in _messages(metadata, 5):
                if kinds.get(_number(stat, 1)) in _HLO:
                    for content in _messages(stat, 6):
                        for module in _messages(content, 1):
                            found[next(_messages(metadata, 2), b"").decode()] = _module(module)
    return found


def _module(module: bytes) -> dict[str, Instruction]:
    computations = list(_messages(module, 3))
    inside = {_number(each, 5): _labels_of_all(each) for each in computations}
    return {
        name: instruction
        for each in computations
        for content in _messages(each, 2)
        for name, instruction in [_instruction(content, inside)]
    }


def _instruction(content: bytes, inside: Mapping[int, list[Label]]) -> tuple[str, Instruction]:
    name = next(_messages(content, 1), b"").decode()
    opcode = next(_messages(content, 2), b"").decode()
    labels = _labels(content)
    if opcode in ("fusion", "reduce", "custom-call"):
        for called in _numbers(content, 38):
            labels += inside.get(called, [])
    return name, Instruction(opcode, tuple(dict.fromkeys(labels)))


def _labels_of_all(computation: bytes) -> list[Label]:
    """Of the instructions of a computation, the last one first: it makes the result."""
    found = [label for content in _messages(computation, 2) for label in _labels(content)]
    return found[::-1]


def _labels(content: bytes) -> list[Label]:
    return [
        label
        for metadata in _messages(content, 7)
        for name in _messages(metadata, 2)
        for label in labels_in(name.decode(errors="replace"))
    ]


# --- fields of a message -------------------------------------------------------------------------------------


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            number, place = _varint(message, place)
            yield key >> 3, number
        elif kind == 2:
            size, place = _varint(message, place)
            yield key >> 3, message[place : place + size]
            place += size
        else:
            place += 8 if kind == 1 else 4


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, place


def _messages(message: bytes, field: int) -> Iterator[bytes]:
    return (value for number, value in _fields(message) if number == field and isinstance(value, bytes))


def _number(message: bytes, field: int) -> int:
    return next(
        (value for number, value in _fields(message) if number == field and isinstance(value, int)), 0
    )


def _numbers(message: bytes, field: int) -> Iterator[int]:
    """A repeated number, packed or not."""
    for number, value in _fields(message):
        if number != field:
            continue
        if isinstance(value, int):
            yield value
            continue
        place = 0
        while place < len(value):
            found, place = _varint(value, place)
            yield found


def _entry(entry: bytes) -> tuple[int, bytes]:
    return _number(entry, 1), next(_messages(entry, 2), b"")
