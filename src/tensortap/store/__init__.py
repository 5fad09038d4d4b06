"""The session directory on disk; the only code that knows its paths.

`SessionStore` and `RunWriter` write it, `open_run` opens one run of it in whichever layout, and the
`export_*` functions turn a run into other formats. The format is described in `docs/format.md`.
"""

from tensortap.errors import DumpFormatError
from tensortap.store.export import export_npz, export_parquet, export_safetensors
from tensortap.store.export_tfdbg import ExportReport, export_tfdbg
from tensortap.store.format import VERSION
from tensortap.store.stored_run import CoreMetadata, StoredRun, StoredTensor, open_run
from tensortap.store.writer import RunWriter, SessionStore
from tensortap.wire.values import InconvertibleTensorProto

__all__ = [
    "VERSION",
    "CoreMetadata",
    "DumpFormatError",
    "ExportReport",
    "InconvertibleTensorProto",
    "RunWriter",
    "SessionStore",
    "StoredRun",
    "StoredTensor",
    "export_npz",
    "export_parquet",
    "export_safetensors",
    "export_tfdbg",
    "open_run",
]
