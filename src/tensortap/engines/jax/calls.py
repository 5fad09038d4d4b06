"""Hearing of every compiled call that a program makes from outside of other compiled code.

Whatever a program calls (its own `jit`, flax's and equinox's, functions of `jax.numpy`, single operations) ends, with
concrete arrays, in one of two functions of JAX. They are replaced while somebody listens. JAX keeps a path in C++ that
goes past them for functions that were called before: listening begins by emptying that cache, not the compiled code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax._src import core as jax_core
from jax._src import pjit

from tensortap.engines.jax.compiled_ahead import AheadOfTime
from tensortap.records import Frame

__all__ = ["Call", "Listener", "execute", "listen", "stop_listening", "unheard"]


@dataclass(slots=True)
class Call:
    """One call of compiled code.

    Attributes:
        arguments: its arrays, flat.
        parameters: of JAX's call, with `jaxpr`, `name` and `donated_invars`.
        go_on: executes it as JAX would have.
        stack: the user's lines that led to it, if they were noted. What the library has compiled for others knows only
            the lines of the first of them.
    """

    arguments: Sequence[Any]
    parameters: dict[str, Any]
    go_on: Callable[[], Sequence[Any]]
    stack: tuple[Frame, ...] = ()

    @property
    def jaxpr(self) -> Any:
        """The traced program."""
        return self.parameters["jaxpr"]

    @property
    def donated(self) -> Sequence[bool]:
        """Which arguments the call may destroy."""
        donated: Sequence[bool] = self.parameters["donated_invars"]
        return donated

    @property
    def is_destroyed(self) -> bool:
        """Whether arguments are gone, so that it cannot be executed again."""
        return any(isinstance(each, jax.Array) and each.is_deleted() for each in self.arguments)


class Listener(Protocol):
    """Whoever wants to hear of calls."""

    def called(self, call: Call) -> Sequence[Any]:
        """Execute the call, in whatever way; its results."""


_state = threading.local()
_listeners: list[Listener] = []
_lock = threading.RLock()
_original_impl: Callable[..., Any] = pjit._pjit_call_impl
_original_python: Callable[..., Any] = pjit._pjit_call_impl_python


def listen(listener: Listener) -> None:
    """Have a listener hear of calls from now on; the one that came last is asked."""
    with _lock:
        if not _listeners:
            pjit._pjit_call_impl_python = _heard_python
            pjit.jit_p.def_impl(_heard_impl)
            _ahead_of_time.install()
        _listeners.append(listener)
        forget_shortcuts()


def stop_listening(listener: Listener) -> None:
    """It hears of no more calls; harmless when said again."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners:
            pjit._pjit_call_impl_python = _original_python
            pjit.jit_p.def_impl(_original_impl)
            _ahead_of_time.remove()


def forget_shortcuts() -> None:
    """Have functions that were called before come by again."""
    for cache in (pjit._cpp_pjit_cache_fun_only, pjit._cpp_pjit_cache_explicit_attributes):
        cache.clear()


@contextmanager
def unheard() -> Iterator[None]:
    """A block of ours, of which nobody hears."""
    before = getattr(_state, "unheard", False)
    _state.unheard = True
    try:
        yield
    finally:
        _state.unheard = before


def execute(arguments: Sequence[Any], parameters: dict[str, Any]) -> Sequence[Any]:
    """Execute a call of ours, of which nobody hears."""
    with unheard():
        results: Sequence[Any] = _original_impl(*arguments, **parameters)
    return results


def _wants() -> Listener | None:
    return None if getattr(_state, "unheard", False) or not _listeners else _listeners[-1]


def _heard_python(*arguments: Any, **parameters: Any) -> Any:
    listener = _wants()
    if listener is None:
        return _original_python(*arguments, **parameters)
    results = listener.called(_call(arguments, parameters))
    # Without an executable JAX makes no shortcut past us.
    return results, None, None, []


def _heard_impl(*arguments: Any, **parameters: Any) -> Any:
    listener = _wants()
    if listener is None:
        return _original_impl(*arguments, **parameters)
    return listener.called(_call(arguments, parameters))


def _call(arguments: Sequence[Any], parameters: dict[str, Any]) -> Call:
    return Call(arguments, parameters, lambda: execute(arguments, parameters))


def _heard_ahead(
    arguments: Sequence[Any], parameters: dict[str, Any], go_on: Callable[[], Sequence[Any]]
) -> Sequence[Any] | None:
    listener = _wants()
    return None if listener is None else listener.called(Call(arguments, parameters, go_on))


_ahead_of_time = AheadOfTime(_heard_ahead)


def is_concrete(values: Sequence[Any]) -> bool:
    """Whether there is no tracer among these."""
    return not any(isinstance(each, jax_core.Tracer) for each in values)
