"""Chrome traces on disk: `timeline-<step>.json`, optionally compressed. Events are dictionaries.

A file holds `traceEvents`, one event per line, and `otherData`, where what tensortap adds stands under `tensortap`:
the wall clock at time zero (`zero_nanos`, since the epoch), `step`, `rank`, `pid`, `host`, memory peaks.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import IO, Any

from tensortap.errors import UsageError

__all__ = [
    "OUR_DATA",
    "Event",
    "TraceFile",
    "TraceFileError",
    "TraceTooLargeError",
    "find_traces",
    "micros",
    "process_names",
    "read_trace",
    "trace_text",
    "write_trace",
]

Event = dict[str, Any]

OUR_DATA = "tensortap"
"""Where in `otherData` our own facts stand."""

PATTERNS = ("timeline-*.json", "timeline-*.json.gz")

_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False)
_MAX_MICROS = 1 << 63

MAX_TEXT_BYTES = 512 << 20
"""Of a trace, unpacked. Larger ones no viewer opens, and read they take ten times as much memory."""

_GZIP_MAGIC = b"\x1f\x8b"


class TraceFileError(UsageError):
    """A file that is no trace, or half of one; the message names it."""


class TraceTooLargeError(UsageError):
    """A trace that would be larger than it may be. Nothing was left on disk."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that was read.

    Attributes:
        events: as they stand in the file.
        facts: what tensortap wrote beside them; empty in traces of other tools.
    """

    path: Path
    events: Sequence[Event]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def merged(self) -> list[Mapping[str, Any]]:
        """What is told of each trace that was merged into this one; empty if it is one as it was written."""
        told = self.facts.get("merged")
        return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def micros(nanos: int) -> float:
    """Nanoseconds as microseconds that come out the same in a viewer that multiplies by 1000 and cuts off the rest.

    Perfetto does. Off by one, slices that touch would overlap, and it drops those.

    >>> micros(1500), micros(1005)
    (1.5, 1.0050000000000001)
    """
    exact = nanos / 1000
    return exact if int(exact * 1000) == nanos else math.nextafter(exact, math.inf)


def trace_text(events: Iterable[Event], facts: Mapping[str, Any] | None = None) -> Iterator[str]:
    """The text of a trace in pieces, one event per line.

    >>> print("".join(trace_text([{"ph": "X", "ts": 1}], {"step": 7})))
    {"traceEvents":[
    {"ph":"X","ts":1}
    ],
    "displayTimeUnit":"ns",
    "otherData":{"tensortap":{"step":7}}}
    """
    yield '{"traceEvents":['
    separator = "\n"
    for event in events:
        yield separator + _JSON.encode(event)
        separator = ",\n"
    yield "\n]"
    if facts is not None:
        # Else chrome://tracing takes slices that begin in the same microsecond for nested.
        yield ',\n"displayTimeUnit":"ns",\n"otherData":' + _JSON.encode({OUR_DATA: facts})
    yield "}"


def write_trace(
    path: Path,
    events: Iterable[Event],
    facts: Mapping[str, Any] | None = None,
    *,
    max_bytes: int | None = None,
) -> int:
    """Write a trace while its events are made; readers see all of it or nothing. The size of its text.

    Args:
        path: compressed if it ends in `.gz`.
        events: written as they come.
        facts: what stands beside them.
        max_bytes: of the text, before compression: it is the text that viewers have to hold.

    Raises:
        TraceTooLargeError: the text would be longer than `max_bytes`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    size = 0
    try:
        with _open_for_writing(temporary, path.name.endswith(".gz")) as file:
            for piece in trace_text(events, facts):
                content = piece.encode()
                size += len(content)
                if max_bytes is not None and size > max_bytes:
                    raise TraceTooLargeError(f"{str(path)!r} would be larger than {max_bytes} bytes.")
                file.write(content)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None  # nobody knows the temporary name
        raise
    return size


@contextlib.contextmanager
def _open_for_writing(path: Path, compressed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if not compressed:
            yield file
            return
        # Without name and time in the header, the same trace makes the same file. Compressing line by line is slow.
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as zipped, BufferedWriter(zipped, 1 << 18) as buffered:
            yield buffered


def read_trace(path: Path) -> TraceFile:
    """Read a trace of ours, of TensorFlow or of any tool that writes Chrome's format; compressed ones, too.

    Raises:
        TraceFileError: the file is no trace or breaks off; in one line.
    """
    name = str(path)
    try:
        content = _read_text(path)
    except (EOFError, zlib.error):
        raise TraceFileError(
            f"{name!r} breaks off in its compressed data; copy it again or take another one."
        ) from None
    except gzip.BadGzipFile as error:
        raise TraceFileError(f"{name!r} is damaged: {error}.") from None
    except OSError as error:
        raise TraceFileError(f"{name!r} cannot be read: {error.strerror or error}.") from None
    try:
        found = json.loads(content)
    except UnicodeDecodeError:
        raise TraceFileError(f"{name!r} is no trace: it is not text.") from None
    except RecursionError:
        raise TraceFileError(f"{name!r} is no trace: it is nested too deeply.") from None
    except MemoryError:
        raise TraceFileError(f"{name!r} does not fit into memory: {len(content)} bytes of text.") from None
    except json.JSONDecodeError as error:
        raise TraceFileError(_why_not_json(name, content, error)) from None
    return _checked(path, found)


def _read_text(path: Path) -> bytes:
    """The text of a trace, unpacked; never more of it than a viewer could hold."""
    with path.open("rb") as file:
        packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        if packed:
            with gzip.GzipFile(fileobj=file) as unpacked:
                content = unpacked.read(MAX_TEXT_BYTES + 1)
        else:
            content = file.read(MAX_TEXT_BYTES + 1) if size <= MAX_TEXT_BYTES else b""
    if len(content) > MAX_TEXT_BYTES or (size > MAX_TEXT_BYTES and not packed):
        raise TraceFileError(
            f"{str(path)!r} {'unpacks to' if packed else 'has'} more than {MAX_TEXT_BYTES >> 20} MB of text, "
            "which is more than is read; ProfilerHook(max_bytes=...) writes smaller ones."
        )
    return content


def _why_not_json(name: str, content: bytes, error: json.JSONDecodeError) -> str:
    text = error.doc
    if not text.strip():
        return f"{name!r} is empty."
    if error.pos >= len(text.rstrip()) - 1 or (error.msg.startswith("Unterminated") and text[:1] in "{["):
        return f"{name!r} breaks off after {len(content)} bytes; copy it again or take another one."
    return f"{name!r} is no JSON: {error.msg} in line {error.lineno}."


def _checked(path: Path, found: Any) -> TraceFile:
    # Chrome's format is an object with the events in it, or just their list.
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise TraceFileError(f"{str(path)!r} is no trace: it is JSON without a list of 'traceEvents'.")
    for number, event in enumerate(events):
        wrong = _what_is_wrong(event)
        if wrong:
            raise TraceFileError(f"{str(path)!r} is no trace: {wrong.format(f'its event {number}')}.")
    other = found.get("otherData") if isinstance(found, dict) else None
    facts = other.get(OUR_DATA) if isinstance(other, dict) else None
    return TraceFile(path, events, facts if isinstance(facts, dict) else {})


def _what_is_wrong(event: Any) -> str:
    """What Chrome's format does not allow, as far as it would mislead a reader."""
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        return "{} has no 'ph'"
    for key in ("ts", "dur"):
        value = event.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return f"{key!r} of {{}} is no number"
        if abs(value) >= _MAX_MICROS:
            return f"{key!r} of {{}} is {value:g}, which is no time"
    for key in ("pid", "tid", "id"):
        if isinstance(event.get(key), (dict, list)):
            return f"{key!r} of {{}} is neither number nor text"
    return "" if isinstance(event.get("args", {}), dict) else "'args' of {} is no object"


def process_names(events: Iterable[Event]) -> dict[Any, str]:
    """What the events call their processes, by number.

    >>> process_names([{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "Allocators"}}])
    {0: 'Allocators'}
    """
    return {
        event.get("pid", 0): str(event.get("args", {}).get("name", ""))
        for event in events
        if event["ph"] == "M" and event.get("name") == "process_name"
    }


def find_traces(path: Path) -> list[Path]:
    """The traces in a directory, or one directory below it (ranks), by step; a file is itself.

    Raises:
        TraceFileError: there is none; the message says what was looked for.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise TraceFileError(f"There is no file or directory {str(path)!r}.")
    found = [each for pattern in PATTERNS for each in path.glob(pattern)]
    found = found or [each for pattern in PATTERNS for each in path.glob(f"*/{pattern}")]
    if not found:
        raise TraceFileError(
            f"There is no {' or '.join(PATTERNS)} in {str(path)!r} or the directories in it; ProfilerHook writes them."
        )
    return sorted(found, key=lambda each: (_step_in_name(each), str(each)))


def _step_in_name(path: Path) -> int:
    digits = path.name.removeprefix("timeline-").partition(".")[0].partition("-")[0]
    return int(digits) if digits.isdecimal() else -1
