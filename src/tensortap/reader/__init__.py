"""Reading what a session dumped, without any framework: one run (`DebugDumpDir`) or all (`SessionDir`).

What `__all__` lists is stable: see docs/api.md.
"""

from tensortap.errors import DumpFormatError
from tensortap.pill import PILL_COLUMNS
from tensortap.reader.datum import DebugTensorDatum, has_inf_or_nan
from tensortap.reader.dump_dir import DebugDumpDir, WatchKeyDoesNotExistInDebugDumpDirError
from tensortap.reader.session_dir import RunRef, SessionDir
from tensortap.store.tfdbg import load_tensor_from_event_file
from tensortap.wire.values import InconvertibleTensorProto

__all__ = [
    "PILL_COLUMNS",
    "DebugDumpDir",
    "DebugTensorDatum",
    "DumpFormatError",
    "InconvertibleTensorProto",
    "RunRef",
    "SessionDir",
    "WatchKeyDoesNotExistInDebugDumpDirError",
    "has_inf_or_nan",
    "load_tensor_from_event_file",
]
