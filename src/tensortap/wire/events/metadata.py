"""The event that a stream begins with: which run it is about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tensortap.records import RunInfo
from tensortap.wire.debug_service import Event, WireError
from tensortap.wire.events.fields import MAX_JSON_BYTES, json_object, microseconds, text, texts, whole

__all__ = ["StreamMetadata", "metadata_event", "read_metadata"]

_EXTRA = "tensortap"
_TEXT_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """What the first event of a stream says about it.

    Attributes:
        info: the run. A client that is not ours leaves timestamp, task and printed fetches at their defaults.
        grpc_path: path of the URL that the client was given, with its leading slash, or empty.
        session: what the runs of one program have in common, and the ranks of one launch; empty if unknown.
        host: name of the client's machine, empty if unknown.
        process: process id of the client, 0 if unknown.
    """

    info: RunInfo
    grpc_path: str = ""
    session: str = ""
    host: str = ""
    process: int = 0


def metadata_event(metadata: StreamMetadata) -> bytes:
    """The event that says which run a stream is about: tfdbg's fields, and ours under a key of their own.

    >>> read_metadata(Event.FromString(metadata_event(StreamMetadata(RunInfo(3, 12, 17))))).info.global_step
    12
    """
    info = metadata.info
    facts = {
        "global_step": info.global_step,
        "session_run_index": info.index,
        "executor_step_index": info.index,
        "input_names": info.input_names,
        "output_names": info.output_names,
        "target_nodes": info.target_nodes,
        "grpc_path": metadata.grpc_path,
        _EXTRA: {
            "timestamp": info.timestamp,
            "task": info.task,
            "fetches": _shortened(info.fetches),
            "feed_keys": _shortened(info.feed_keys),
            "session": metadata.session,
            "host": metadata.host,
            "process": metadata.process,
        },
    }
    event = Event(wall_time=float(info.timestamp))
    event.log_message.message = json.dumps(facts)
    return bytes(event.SerializeToString())


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"


def read_metadata(event: Any) -> StreamMetadata:
    """What a metadata event says.

    Raises:
        WireError: it is no JSON, or a field has the wrong form.
    """
    facts = json_object(event.log_message.message)
    ours = facts.get(_EXTRA, {})
    if not isinstance(ours, dict):
        raise WireError(f"The metadata of a run has a field {_EXTRA!r} that is no object.")
    info = RunInfo(
        index=whole(facts, "session_run_index", -1),
        global_step=whole(facts, "global_step", -1),
        timestamp=whole(ours, "timestamp", microseconds(event.wall_time)),
        task=whole(ours, "task", 0),
        fetches=text(ours, "fetches", "None", MAX_JSON_BYTES),
        feed_keys=text(ours, "feed_keys", "None", MAX_JSON_BYTES),
        input_names=texts(facts, "input_names"),
        output_names=texts(facts, "output_names"),
        target_nodes=texts(facts, "target_nodes"),
    )
    return StreamMetadata(
        info,
        text(facts, "grpc_path"),
        text(ours, "session"),
        text(ours, "host"),
        whole(ours, "process", 0),
    )
