"""The user's lines of an equation: what traced it, without JAX and the libraries that are written in it."""

from __future__ import annotations

import functools
import importlib.util
from types import FrameType
from typing import Any

from tensortap.engines.lines import Whose, folder_of, resolved, whose
from tensortap.records import Frame

__all__ = ["is_library_file", "is_of_jax", "is_optimizer_stack", "stack_from", "stack_of"]

_LIBRARIES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "equinox",
    "haiku",
    "chex",
    "distrax",
    "diffrax",
    "orbax",
    "jaxopt",
    "jaxtyping",
    "treescope",
)
_OPTIMIZERS = ("optax", "jaxopt")
_STACK_KEPT = 12


def _folders(names: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None:
            found.extend(folder_of(each) for each in spec.submodule_search_locations or ())
    return tuple(found)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    return _folders(_LIBRARIES)


@functools.cache
def _optimizer_folders() -> tuple[str, ...]:
    return _folders(_OPTIMIZERS)


@functools.lru_cache(maxsize=4096)
def _whose(file: str) -> Whose:
    return whose(resolved(file), _library_folders())


@functools.lru_cache(maxsize=4096)
def _is_optimizer_file(file: str) -> bool:
    return resolved(file).startswith(_optimizer_folders() or ("\0",))


@functools.cache
def _jax_folders() -> tuple[str, ...]:
    return _folders(("jax", "jaxlib"))


@functools.lru_cache(maxsize=4096)
def is_of_jax(file: str | None) -> bool:
    """Whether a function is one of JAX itself: what it has traced once serves all who call it."""
    return file is not None and resolved(file).startswith(_jax_folders())


def is_library_file(file: str | None) -> bool:
    """Whether a function of that file is none of the user's."""
    return file is None or _whose(file) is not Whose.USER


@functools.lru_cache(maxsize=65536)
def stack_of(traceback: Any) -> tuple[Frame, ...]:
    """The user's frames of a traceback, outermost first."""
    if traceback is None:
        return ()
    kept: list[Frame] = []
    for frame in traceback.frames:
        owner = _whose(frame.file_name)
        if owner is Whose.LAUNCHER:
            break
        if owner is Whose.USER:
            kept.append(Frame(frame.file_name, frame.line_num, frame.function_name))
            if len(kept) == _STACK_KEPT:
                break
    return tuple(reversed(kept))


def stack_from(frame: FrameType | None) -> tuple[Frame, ...]:
    """The user's frames from one of the interpreter's on, outermost first."""
    kept: list[Frame] = []
    while frame is not None and len(kept) < _STACK_KEPT:
        owner = _whose(frame.f_code.co_filename)
        if owner is Whose.LAUNCHER:
            break
        if owner is Whose.USER:
            kept.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return tuple(reversed(kept))


@functools.lru_cache(maxsize=65536)
def is_optimizer_stack(traceback: Any) -> bool:
    """Whether a library of optimizers made an equation."""
    return traceback is not None and any(_is_optimizer_file(frame.file_name) for frame in traceback.frames)
