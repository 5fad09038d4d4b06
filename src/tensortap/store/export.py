"""A run, or the health of a session, in formats that other tools read."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from tensortap.extras import require
from tensortap.pill import PILL_COLUMNS, PILL_OP, PILL_SIZE
from tensortap.store.export_tfdbg import ExportReport, resolve_run
from tensortap.store.stored_run import StoredRun, StoredTensor
from tensortap.wire.values import InconvertibleTensorProto

__all__ = ["export_npz", "export_parquet", "export_safetensors"]

Keep = Callable[[StoredTensor], bool]


def export_npz(run: Any, dest: str | Path, keep: Keep | None = None) -> ExportReport:
    """Write values as one `.npz`; keys are watch keys, with `@<n>` from the second execution on.

    Types NumPy files cannot name (bfloat16, float8 …) are widened to float32, which holds them exactly.

    Args:
        run: a run directory, a `DebugDumpDir` or a `StoredRun`.
        dest: the file to write.
        keep: which records to take; all by default.
    """
    report = ExportReport()
    with zipfile.ZipFile(dest, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, tensor in _keyed(resolve_run(run), keep):
            value = _array(tensor, key, report)
            if value is None:
                continue
            if value.dtype.kind == "V":
                value = value.astype(np.float32)
                report.notices.append(f"{key} was widened from {tensor.dtype} to float32.")
            if value.dtype == object:
                value = value.astype(np.bytes_)
            with archive.open(f"{_member(key)}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(value), allow_pickle=False)
            report.written += 1
    return report


def export_safetensors(run: Any, dest: str | Path, keep: Keep | None = None) -> ExportReport:
    """Write values as one safetensors file; keys as in `export_npz`, bfloat16 and float8 as they are.

    Values are copied one after the other, so a run larger than memory can be exported.
    """
    report = ExportReport()
    chosen: list[tuple[str, Any]] = []
    header: dict[str, Any] = {"__metadata__": {"format": "np", "producer": "tensortap"}}
    position = 0
    for key, tensor in _keyed(resolve_run(run), keep):
        value = _array(tensor, key, report)
        if value is None:
            continue
        name = _SAFETENSORS.get(value.dtype.name)
        if name is None:
            report.notices.append(f"{key} was left out: safetensors has no type for {value.dtype}.")
            continue
        header[key] = {
            "dtype": name,
            "shape": list(value.shape),
            "data_offsets": [position, position + value.nbytes],
        }
        position += value.nbytes
        chosen.append((key, tensor))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with Path(dest).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in chosen:
            # Loaded again: the mapping is shared, and nothing but the current value stays referenced.
            file.write(np.ascontiguousarray(tensor.load()).reshape(-1).view(np.uint8).data)
            report.written += 1
    return report


def export_parquet(run: Any, dest: str | Path) -> ExportReport:
    """Write the health pills of a run, or of a list of runs, as one Parquet table, a row per pill.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    require("parquet", "A Parquet file")
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    report = ExportReport()
    columns: dict[str, list[Any]] = {name: [] for name in _PARQUET_COLUMNS}
    for each in run if isinstance(run, (list, tuple)) else [run]:
        for row in _pill_rows(resolve_run(each), report):
            for name, item in zip(_PARQUET_COLUMNS, row, strict=True):
                columns[name].append(item)
            report.written += 1
    parquet.write_table(pyarrow.table(columns), dest)
    return report


def _pill_rows(source: StoredRun, report: ExportReport) -> Iterator[tuple[Any, ...]]:
    facts = source.core_metadata[0] if source.core_metadata else None
    for key, tensor in _keyed(source, lambda each: each.debug_op == PILL_OP):
        value = _array(tensor, key, report)
        if value is None or value.size < PILL_SIZE:
            continue
        numbers = value.reshape(-1).tolist()
        yield (
            facts.session_run_index if facts else -1,
            facts.global_step if facts else -1,
            source.task,
            tensor.timestamp,
            tensor.device,
            tensor.tensor_name,
            *numbers[:PILL_SIZE],
            [int(size) for size in numbers[PILL_SIZE:]],
        )


_PARQUET_COLUMNS = ("run", "step", "task", "timestamp", "device", "tensor", *PILL_COLUMNS, "shape")
_SAFETENSORS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}


def _keyed(source: StoredRun, keep: Keep | None) -> Iterator[tuple[str, StoredTensor]]:
    """Records with a key that is unique in the run: devices and repeated executions are told apart."""
    seen: dict[str, int] = {}
    for device in source.devices:
        for tensor in source.tensors[device]:
            if keep is not None and not keep(tensor):
                continue
            key = f"{tensor.tensor_name}:{tensor.debug_op}"
            if len(source.devices) > 1:
                key = f"{device.lstrip('/')}:{key}"
            count = seen[key] = seen.get(key, -1) + 1
            yield (f"{key}@{count}" if count else key), tensor


def _array(tensor: StoredTensor, key: str, report: ExportReport) -> Any | None:
    try:
        value = tensor.load()
    except ValueError as error:
        report.notices.append(f"{key} was left out: {error}")
        return None
    if isinstance(value, InconvertibleTensorProto):
        report.notices.append(f"{key} was left out: it has no value that an array can hold.")
        return None
    return value


def _member(key: str) -> str:
    """A zip member name that leads nowhere when somebody unpacks the archive into a folder."""
    if key.startswith("/") or "\\" in key or "\0" in key or {".", "..", ""} & set(key.split("/")):
        return quote(key, safe=":@").replace("..", "%2E%2E")
    return key
