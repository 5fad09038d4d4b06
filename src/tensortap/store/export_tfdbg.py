"""A run in tfdbg's layout, as TensorFlow's own `DebugDumpDir` and offline analyzer open it (E1–E9)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensortap.errors import DumpFormatError
from tensortap.store.layout import safe_component
from tensortap.store.stored_run import StoredRun, StoredTensor, open_run
from tensortap.store.tfdbg import CORE_METADATA, FEED_KEYS, FETCHES, GRAPH, device_name_to_device_path
from tensortap.wire.tensor_proto import fill_tensor
from tensortap.wire.values import InconvertibleTensorProto

__all__ = ["ExportReport", "export_tfdbg", "resolve_run"]

MAX_MESSAGE_BYTES = (1 << 31) - (1 << 16)
"""A protobuf message holds at most 2 GiB."""


@dataclass(slots=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        written: number of records.
        notices: what was left out or changed, in sentences.
    """

    written: int = 0
    notices: list[str] = field(default_factory=list)


def resolve_run(run: Any) -> StoredRun:
    """The stored run behind a path, a `DebugDumpDir` or a `StoredRun`."""
    if isinstance(run, str | Path):
        return open_run(run)
    source: StoredRun = getattr(run, "source", run)
    return source


def export_tfdbg(run: Any, dest: str | Path) -> ExportReport:
    """Write a run in tfdbg's layout.

    Args:
        run: a run directory, a `DebugDumpDir` or a `StoredRun`.
        dest: a directory that is missing or empty.

    Returns:
        What was written. Records whose names cannot be file names are left out, and dtypes TensorFlow has no
        number for are widened; the notices say so.

    Raises:
        FileExistsError: `dest` holds something.
    """
    source = resolve_run(run)
    root = Path(dest)
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise FileExistsError(f"{root} is not empty; export into a new directory.")
    report = ExportReport()
    _write_metadata(source, root)
    for device in source.devices:
        name = device_name_to_device_path(device)
        if not safe_component(name):
            report.notices.append(f"Device {device[:120]!r} was left out: its name cannot be a directory.")
            continue
        folder = root / name
        folder.mkdir()
        _write_graph(source, device, folder)
        for tensor in source.tensors[device]:
            _write_tensor(tensor, folder, report)
    return report


def _write_metadata(source: StoredRun, root: Path) -> None:
    for facts in source.core_metadata:
        name = f"{CORE_METADATA}sessionrun{max(facts.session_run_index, 0):014d}_{_start(source)}"
        _write_message(root / name, json.dumps(facts._asdict()))
    for prefix, texts in ((FETCHES, source.fetches), (FEED_KEYS, source.feed_keys)):
        for number, text in enumerate(texts):
            _write_message(root / f"{prefix}{number or ''}", text)


def _start(source: StoredRun) -> int:
    first = [data[0].timestamp for data in source.tensors.values() if data]
    return min(first) if first else 0


def _new_event() -> Any:
    from tensortap.wire.messages import Event

    return Event()


def _write_message(path: Path, text: str) -> None:
    event = _new_event()
    event.log_message.message = text
    path.write_bytes(event.SerializeToString())


def _write_graph(source: StoredRun, device: str, folder: Path) -> None:
    graph = source.graph(device)
    if graph is None:
        return
    content = graph.SerializeToString(deterministic=True)
    number = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
    event = _new_event()
    event.graph_def = content
    (folder / f"{GRAPH}hash{number}_{_start(source)}").write_bytes(event.SerializeToString())


def _write_tensor(tensor: StoredTensor, folder: Path, report: ExportReport) -> None:
    *scopes, last = tensor.node_name.split("/")
    file = f"{last}_{tensor.output_slot}_{tensor.debug_op}_{tensor.extended_timestamp}"
    watch_key = f"{tensor.tensor_name}:{tensor.debug_op}"
    if "_" in tensor.debug_op or not all(map(safe_component, [*scopes, file])):
        report.notices.append(f"{watch_key[:160]!r} was left out: its name cannot be a file name.")
        return
    try:
        value = tensor.load()
    except DumpFormatError as error:
        report.notices.append(f"{watch_key} was left out: {error}")
        return
    if (tensor.nbytes or 0) > MAX_MESSAGE_BYTES:
        report.notices.append(f"{watch_key} was left out: a protobuf message holds at most 2 GiB.")
        return
    event = _new_event()
    event.wall_time = float(tensor.timestamp)
    summary = event.summary.value.add(node_name=watch_key, tag=tensor.node_name)
    summary.metadata.plugin_data.plugin_name = "debugger"
    summary.metadata.plugin_data.content = json.dumps(
        {"device": tensor.device, "outputSlot": tensor.output_slot, "numChunks": 1, "chunkIndex": 0}
    ).encode()
    shape = tensor.shape or () if isinstance(value, InconvertibleTensorProto) else value.shape
    dtype = tensor.dtype
    if not dtype and not isinstance(value, InconvertibleTensorProto):
        dtype = "string" if value.dtype == object else str(value.dtype)
    substitute = fill_tensor(summary.tensor, value, dtype, tuple(shape))
    if substitute is not None:
        report.notices.append(f"{watch_key} was widened from {tensor.dtype} to {substitute}.")
    place = folder.joinpath(*scopes)
    place.mkdir(parents=True, exist_ok=True)
    (place / file).write_bytes(event.SerializeToString())
    report.written += 1
