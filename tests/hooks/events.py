"""Reading back the event files that hooks wrote, without TensorFlow."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c


def read_events(directory: Path) -> list[Any]:
    """All events of all files, in order of file name; the checksums of every record must be right."""
    events = []
    for file in sorted(directory.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            body = data[12 : 12 + length]
            assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
            assert struct.unpack("<I", data[12 + length : 16 + length]) == (masked_crc32c(body),)
            events.append(Event.FromString(body))
            data = data[16 + length :]
    return events


def scalars(directory: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of all scalars."""
    return [
        (event.step, value.tag, value.simple_value)
        for event in read_events(directory)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]
