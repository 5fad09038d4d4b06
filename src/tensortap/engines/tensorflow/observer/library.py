"""The native observer's functions as Python calls them."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from tensortap.engines import building
from tensortap.engines.tensorflow.observer.build import RECIPE, SOURCE
from tensortap.engines.tensorflow.observer.dtypes import code_of, name_of
from tensortap.errors import NativeBuildError
from tensortap.ops import kernel
from tensortap.records import MAX_BATCH_RANK

__all__ = ["DESCRIBE", "ON_FULL", "ON_STOP", "Description", "NativeLane", "Stopped", "Taken", "library"]

_POINTER, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
_DTYPES = 64


class NativeLane(ctypes.Structure):
    """`Lane` of recorder.h."""

    _fields_ = (("kind", _INT), ("mute_if_healthy", _INT), ("lower", _DOUBLE), ("upper", _DOUBLE))


class Description(ctypes.Structure):
    """`Description` of recorder.h: a graph that is about to be executed."""

    _fields_ = (
        ("watch", _LONG),
        ("function", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("graph_def", _POINTER),
        ("graph_def_size", _LONG),
        ("node_count", _LONG),
        ("output_count", _LONG),
        ("outputs", ctypes.POINTER(_INT)),
        ("written", ctypes.POINTER(_INT)),
        ("dtypes", ctypes.POINTER(_INT)),
        ("first", _LONG),
        ("lanes", ctypes.POINTER(ctypes.c_uint32)),
    )


class Taken(ctypes.Structure):
    """`Taken` of observer.cpp: a block of records."""

    _fields_ = (
        ("block", _POINTER),
        ("rows", _POINTER),
        ("executions", _POINTER),
        ("data", _POINTER),
        ("count", _LONG),
        ("used", _LONG),
        ("has_bad", _INT),
        ("has_apart", _INT),
    )


class Stopped(ctypes.Structure):
    """`Stopped` of recorder.h: a run that waits."""

    _fields_ = (
        ("watch", _LONG),
        ("recorder", _LONG),
        ("number", _LONG),
        ("rank", _LONG),
        ("dims", _LONG * MAX_BATCH_RANK),
        ("data", _POINTER),
        ("nbytes", _LONG),
    )


DESCRIBE = ctypes.CFUNCTYPE(_INT, ctypes.POINTER(Description))
ON_FULL = ctypes.CFUNCTYPE(None, _LONG)
ON_STOP = ctypes.CFUNCTYPE(None, ctypes.POINTER(Stopped))

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tt_configure": (None, (_POINTER, ctypes.POINTER(ctypes.c_int8))),
    "tt_new_watch": (
        _POINTER,
        (_LONG, ctypes.POINTER(NativeLane), _INT, _INT, _LONG, DESCRIBE, ON_FULL, ON_STOP),
    ),
    "tt_delete_watch": (None, (_POINTER,)),
    "tt_new_recorder": (_POINTER, (_POINTER,)),
    "tt_delete_recorder": (None, (_POINTER,)),
    "tt_recorder_id": (_LONG, (_POINTER,)),
    "tt_arm": (None, (_POINTER,)),
    "tt_disarm": (None, (_POINTER,)),
    "tt_watch_functions": (None, (_POINTER,)),
    "tt_take": (_INT, (_POINTER, _INT, ctypes.POINTER(Taken))),
    "tt_give_back": (None, (_POINTER,)),
    "tt_counts": (None, (_POINTER, ctypes.POINTER(_LONG))),
}


def library() -> Any:
    """The observer, built if need be and loaded once. What failed once is not tried again by this process.

    Raises:
        NativeBuildError: it cannot be built or loaded here, or there is no native kernel.
    """
    found = _load_or_failure()
    if isinstance(found, NativeBuildError):
        raise found
    return found


@functools.cache
def _load_or_failure() -> Any:
    try:
        summary = _summary_address()
        loaded = building.load_or_build(RECIPE, SOURCE, _load, "TENSORTAP_INTERCEPTOR=portable")
    except NativeBuildError as error:
        return error.with_traceback(None)
    codes = (ctypes.c_int8 * _DTYPES)(*(code_of(name_of(number)) for number in range(_DTYPES)))
    loaded.tt_configure(summary, codes)
    return loaded


def _summary_address() -> int:
    native = kernel.native()
    if native is None:
        raise NativeBuildError(
            "The native kernel for numeric summaries is not there, and the native observer needs it.",
            "Install tensortap where there is a C compiler.",
        )
    return int(native.summary_address())


def _load(path: Path) -> Any:
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:
            raise OSError(f"{path} has no {name}") from error
        function.restype, function.argtypes = result, arguments
    return loaded
