"""The library of taps, loaded and known to XLA: where records come from and fed values go to."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tensortap.engines import building
from tensortap.engines.jax.dtypes import XLA_DTYPES
from tensortap.engines.jax.taps import build
from tensortap.errors import NativeBuildError
from tensortap.ops import kernel
from tensortap.ops.dtypes import CODES, itemsize_of
from tensortap.pill import PILL_SIZE

__all__ = ["MOST_BYTES", "MOST_RECORDS", "VARIABLE", "Library", "Memory", "Taken", "library"]

log = logging.getLogger("tensortap.engine")

VARIABLE = "TENSORTAP_JAX_TAPS"
"""`native`, `portable`, or `auto`: native taps where they can be built and the platform is the CPU."""

MOST_RECORDS = 2_000_000
MOST_BYTES = 4 << 30
"""Records and copied bytes of one call; what goes beyond is counted."""

_MAX_DIMS = 8
_WIDTH = PILL_SIZE + _MAX_DIMS
_ROW = np.dtype(
    [("number", "<i8"), ("rank", "<i8"), ("row", "<f8", (_WIDTH,)), ("value", "<u8"), ("nbytes", "<i8")]
)


class _Records(ctypes.Structure):
    _fields_ = (
        ("records", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("room", ctypes.c_int64),
        ("dropped", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    )


@dataclass
class Taken:
    """The records of one call.

    Attributes:
        numbers: of the tap that made each record, in the order of time.
        rows: a health pill for each, with room for eight dimensions.
        values: the copied elements of each as bytes; None for those that were only summarised.
        dropped: how many records there was no room for.
    """

    numbers: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float64]
    values: list[bytes | None]
    dropped: int = 0

    @classmethod
    def joined(cls, one: Taken, other: Taken) -> Taken:
        """The records of both, as if they had been made one after the other."""
        if not len(other.numbers):
            return one
        return cls(
            np.concatenate([one.numbers, other.numbers]),
            np.concatenate([one.rows, other.rows]),
            [*one.values, *other.values],
            one.dropped + other.dropped,
        )


class Memory:
    """What lies in pieces of memory, in the words of the library.

    Args:
        dtypes: names of the dtypes, of which all are known to XLA.
        counts: numbers of elements.
    """

    def __init__(self, dtypes: Sequence[str], counts: Sequence[int]) -> None:
        self.dtypes = (ctypes.c_int * len(dtypes))(*(XLA_DTYPES[name] for name in dtypes))
        self.counts = (ctypes.c_int64 * len(counts))(*counts)


class Library:
    """The loaded library."""

    def __init__(self, native: Any) -> None:
        self._c: Any = building.load_or_build(
            build.RECIPE, build.SOURCE, lambda path: ctypes.CDLL(str(path)), f"{VARIABLE}=portable"
        )
        self._c.tensortap_record_bytes.restype = ctypes.c_int64
        if self._c.tensortap_record_bytes() != _ROW.itemsize:
            raise NativeBuildError(
                "The library of taps has another layout of records.",
                "Build it with `tensortap build --force`.",
            )
        codes = (ctypes.c_int * 64)(*[-1] * 64)
        sizes = (ctypes.c_int * 64)()
        for name, number in XLA_DTYPES.items():
            if name in CODES:
                codes[number] = CODES[name]
                sizes[number] = itemsize_of(name)
        self._c.tensortap_configure(
            ctypes.c_void_p(native.summary_address()),
            codes,
            sizes,
            ctypes.c_int64(MOST_RECORDS),
            ctypes.c_int64(MOST_BYTES),
        )
        for name in ("tensortap_tap", "tensortap_feed", "tensortap_bad"):
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(self._c, name)), platform="cpu")
        self._look_alone: Any = ctypes.PyDLL(self._c._name).tensortap_look
        self._fed: dict[int, npt.NDArray[Any]] = {}
        self._lock = threading.Lock()

    def take(self) -> Taken:
        """Take all records that have been made."""
        taken = _Records()
        self._c.tensortap_take(ctypes.byref(taken))
        try:
            if not taken.count:
                empty = np.zeros(0, np.int64)
                return Taken(empty, np.zeros((0, _WIDTH)), [], taken.dropped)
            address = ctypes.cast(taken.records, ctypes.POINTER(ctypes.c_ubyte))
            raw = np.ctypeslib.as_array(address, (taken.count * _ROW.itemsize,)).view(_ROW)
            values: list[bytes | None] = [None] * taken.count
            for place in np.flatnonzero(raw["value"]).tolist():
                values[place] = ctypes.string_at(int(raw["value"][place]), int(raw["nbytes"][place]))
            return Taken(raw["number"].copy(), raw["row"].copy(), values, taken.dropped)
        finally:
            self._c.tensortap_free(ctypes.byref(taken))

    def look(self, memory: Memory, addresses: Sequence[int], alone: bool = False) -> Sequence[int]:
        """Kinds of bad values in each piece of memory.

        Args:
            memory: what lies there.
            addresses: of the pieces.
            alone: no other thread of Python may run meanwhile, which could take the memory away.
        """
        count = len(addresses)
        kinds = (ctypes.c_uint8 * count)()
        pointers = (ctypes.c_void_p * count)(*addresses)
        look = self._look_alone if alone else self._c.tensortap_look
        look(ctypes.c_int64(count), pointers, memory.dtypes, memory.counts, kinds)
        return bytes(kinds)

    def store(self, number: int, value: npt.NDArray[Any]) -> None:
        """Have a feed give this value from now on."""
        array = np.ascontiguousarray(value)
        with self._lock:
            stored = self._c.tensortap_store(
                ctypes.c_int64(number), ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(array.nbytes)
            )
            if not stored:
                raise MemoryError("no room for a fed value")
            self._fed[number] = array


@functools.cache
def library() -> Library | None:
    """The library, or None where taps have to be made of JAX's own operations."""
    choice = os.environ.get(VARIABLE, "auto").lower()
    native = kernel.native()
    if choice == "portable":
        return None
    try:
        if native is None:
            raise NativeBuildError("The native kernel is not available.", "Install it (docs/native.md).")
        if jax.default_backend() != "cpu":
            raise NativeBuildError(f"The platform is {jax.default_backend()}.", "Nothing need be done.")
        return Library(native)
    except NativeBuildError as error:
        if choice == "native":
            raise
        log.warning("JAX programs are watched by slower means: %s", error)
        return None
