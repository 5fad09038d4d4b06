"""The event that a stream of ours ends with: how the run did."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tensortap.records import Circumstances
from tensortap.wire.debug_service import WireError
from tensortap.wire.events.fields import MAX_JSON_BYTES, bounded, json_object, text, whole
from tensortap.wire.events.own import own_event

__all__ = ["RUN_END_PLUGIN", "RunEnding", "read_run_end", "run_end_event"]

RUN_END_PLUGIN = "tensortap.run_end"


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended, as our clients tell servers that accept it.

    Attributes:
        error: what made it fail, None if it completed.
        counts: what the client counted so far, such as records dropped because the server was slow.
        graphs: SHA-256 of the serialised GraphDef of each device, as this or an earlier stream sent it.
        circumstances: what the engine knows of the run besides, see `Circumstances.as_dict`.
    """

    error: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, Any] = field(default_factory=dict)


def run_end_event(ending: RunEnding) -> bytes:
    """The event that says how a run ended; the last of its stream."""
    content = json.dumps(asdict(ending)).encode()
    if len(content) > MAX_JSON_BYTES:  # thousands of bad tensors: the answer can do without
        content = json.dumps(asdict(replace(ending, circumstances={}))).encode()
    return b"".join(own_event(RUN_END_PLUGIN, content))


def read_run_end(event: Any) -> RunEnding:
    """How a run ended.

    Raises:
        WireError: it is no JSON, or a field has the wrong form.
    """
    facts = json_object(event.summary.value[0].metadata.plugin_data.content)
    counts = facts.get("counts", {})
    if not isinstance(counts, dict) or len(counts) > 1000:
        raise WireError("The counts at the end of a run are no object.")
    graphs = facts.get("graphs", {})
    if not isinstance(graphs, dict) or len(graphs) > 1000:
        raise WireError("The graphs at the end of a run are no object.")
    error = None if facts.get("error") is None else text(facts, "error", "", MAX_JSON_BYTES)
    return RunEnding(
        error,
        {bounded(name): whole(counts, name, 0) for name in counts},
        {bounded(device): text(graphs, device) for device in graphs},
        _circumstances(facts.get("circumstances", {})),
    )


def _circumstances(told: Any) -> dict[str, Any]:
    try:
        return Circumstances.from_dict(told).as_dict()
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise WireError(f"The circumstances at the end of a run cannot be read: {error!r}") from error
