"""The observer's functions as Python calls them. They are called with the GIL held and return quickly."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from tensortap.engines import building
from tensortap.engines.torch import memory
from tensortap.engines.torch.observer.build import RECIPE, SOURCE, NativeBuildError
from tensortap.engines.torch.schema import dtype_by_number
from tensortap.engines.torch.values import dtype_name
from tensortap.ops import kernel
from tensortap.ops.dtypes import CODES

__all__ = ["NativeObserver", "Scope", "library"]

_POINTER, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
_OBJECT = ctypes.py_object

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tt_reads_frames": (_INT, ()),
    "tt_new": (_POINTER, (_OBJECT, _POINTER, _POINTER, _INT, _INT)),
    "tt_delete": (None, (_POINTER,)),
    "tt_new_plan": (_POINTER, ()),
    "tt_delete_plan": (None, (_POINTER,)),
    "tt_begin": (_POINTER, (_POINTER, _POINTER, _INT, _INT, _LONG, _LONG, _LONG, _LONG)),
    "tt_add_lane": (None, (_POINTER, _INT, _DOUBLE, _DOUBLE, _INT)),
    "tt_install": (ctypes.c_uint64, (_POINTER, _INT)),
    "tt_uninstall": (None, (ctypes.c_uint64,)),
    "tt_start": (None, (_POINTER, _POINTER)),
    "tt_stop": (None, (_POINTER, _POINTER)),
    "tt_end": (None, (_POINTER, _POINTER)),
    "tt_outcome": (ctypes.py_object, (_POINTER,)),
    "tt_survivors": (ctypes.py_object, (_POINTER,)),
    "tt_inherit": (None, (_POINTER, _POINTER, _OBJECT)),
    "tt_trace": (None, (_POINTER,)),
    "tt_execution_count": (_LONG, (_POINTER,)),
    "tt_executions": (_POINTER, (_POINTER,)),
    "tt_hooks": (_OBJECT, (_POINTER,)),
    "tt_add_module": (None, (_POINTER, _LONG, _INT)),
    "tt_scope": (_POINTER, (_POINTER,)),
    "tt_expect_state": (None, (_POINTER, ctypes.py_object)),
    "tt_step_in_frame": (None, (_POINTER, ctypes.py_object)),
    "tt_covers": (_INT, (_LONG,)),
    "tt_next": (_INT, (_POINTER, _INT, _INT)),
    "tt_reserve_entry": (_INT, (_POINTER,)),
    "tt_find": (_LONG, (_POINTER, _LONG)),
    "tt_is_unwritten": (_INT, (_POINTER, _LONG)),
    "tt_add_source": (_INT, (_POINTER, _LONG, _INT, _INT)),
    "tt_add_parameter": (None, (_POINTER, _LONG, _INT, _INT, _INT, _INT)),
    "tt_forget_known": (None, (_POINTER,)),
    "tt_remember_known": (_INT, (_POINTER, _OBJECT, _OBJECT, _OBJECT)),
    "tt_name_known": (_INT, (_POINTER, _OBJECT, _INT)),
    "tt_remember_state": (_INT, (_POINTER, _OBJECT, _INT, _OBJECT, _OBJECT)),
    "tt_name_state": (_INT, (_POINTER, _OBJECT, _INT)),
    "tt_set_owner": (None, (_POINTER, _LONG, _INT)),
    "tt_node_changed": (None, (_POINTER, _INT)),
    "tt_flush": (_INT, (_POINTER,)),
    "tt_unpack": (_INT, (_POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG)),
    "tt_quick_calls": (_OBJECT, (_OBJECT, _OBJECT, _OBJECT)),
    "tt_set_quick_hooks": (None, (_OBJECT,)),
    "tt_outermost_calls": (_OBJECT, (_OBJECT,)),
    "tt_root_calls": (_OBJECT, (_OBJECT,)),
    "tt_begin_root_calls": (None, (_OBJECT, _LONG)),
    "tt_expect_root_call": (None, (_OBJECT, _OBJECT, _OBJECT, _LONG)),
    "tt_passed_root_calls": (_LONG, (_OBJECT, _OBJECT)),
    "tt_take_root_calls": (_OBJECT, (_OBJECT,)),
    "tt_gate": (_POINTER, ()),
    "tt_guarded_calls": (_OBJECT, (_OBJECT, _OBJECT)),
    "tt_first_not_finite": (_INT, (_OBJECT, _INT, _OBJECT)),
    "tt_samples": (_LONG, (_OBJECT, _INT, _LONG, _POINTER, _LONG, _POINTER, _LONG)),
    "tt_measure": (None, (_POINTER, _LONG, _POINTER, _POINTER, _POINTER)),
    "tt_leaves": (_OBJECT, (_OBJECT, _LONG)),
    "tt_signature": (_OBJECT, (_OBJECT, _OBJECT)),
    "tt_gradients": (None, (_OBJECT, _POINTER)),
    "tt_forget_codes": (None, (_POINTER,)),
}


class Scope(ctypes.Structure):
    """Where ops run that are in no module; the observer reads it without asking."""

    _fields_ = (("scope", ctypes.c_int32), ("in_optimizer", ctypes.c_int32))


class NativeObserver:
    """One observer, which lives for as long as anybody refers to it.

    Args:
        answers: what it asks about everything new. Kept, since it does not keep it itself.
        constant_label: the number of the label of tensors that come from nowhere.
        view_label: the number of the label of views that were made where nobody could see it.

    Attributes:
        library: its functions.
        handle: what they know it by.
    """

    def __init__(self, answers: object, constant_label: int, view_label: int) -> None:
        self.library = library()
        self._answers = answers
        self.handle: int = self.library.tt_new(
            answers,
            ctypes.cast(_dtype_codes(), ctypes.c_void_p),
            _summary_address(),
            constant_label,
            view_label,
        )

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None:
            self.library.tt_delete(handle)


def library() -> Any:
    """The observer's code, built if need be and loaded once. What failed once is not tried again by this process.

    Raises:
        NativeBuildError: it cannot be built or loaded here.
    """
    found = _load_or_failure()
    if isinstance(found, NativeBuildError):
        raise found
    return found


@functools.cache
def _load_or_failure() -> Any:
    try:
        return building.load_or_build(RECIPE, SOURCE, _load, "TENSORTAP_INTERCEPTOR=dispatch")
    except NativeBuildError as error:
        return error.with_traceback(None)


def _load(path: Path) -> Any:
    loaded: Any = ctypes.PyDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:
            raise OSError(f"{path} has no {name}") from error
        function.restype, function.argtypes = result, arguments
    memory.prove_with(lambda tensor: bool(loaded.tt_covers(tensor._cdata)))
    return loaded


@functools.cache
def _dtype_codes() -> Any:
    """The kernel's code of each PyTorch dtype, by PyTorch's number of it; -1 where it has none."""
    codes = (ctypes.c_int8 * 64)(*([-1] * 64))
    for number in range(len(codes)):
        dtype = dtype_by_number(number)
        if dtype is not None:
            codes[number] = CODES.get(dtype_name(dtype), -1)
    return codes


def _summary_address() -> int | None:
    """The C kernel for numeric summaries, or None where there is none."""
    native = kernel.native()
    return None if native is None else native.summary_address()
