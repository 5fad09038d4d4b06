"""Calls of code that was compiled ahead of time, `jit(f).lower(...).compile()`, which go another way through JAX.

What was traced is noted on its way to the executable, so that such a call can be heard of like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import stages

__all__ = ["AheadOfTime"]

_NOTE = "_tensortap_parameters"


class AheadOfTime:
    """Hears of such calls while it is installed.

    Args:
        heard: is asked with the arguments, the parameters of the call and what executes it; its results, or None if
            nobody wants to hear of it.
    """

    def __init__(
        self,
        heard: Callable[[Sequence[Any], dict[str, Any], Callable[[], Sequence[Any]]], Sequence[Any] | None],
    ) -> None:
        self._heard = heard
        self._lower: Any = stages.Traced.lower
        self._compile: Any = stages.Lowered.compile
        self._call: Any = stages.Compiled.__call__

    def install(self) -> None:
        """Hear of calls from now on, of what is traced from now on."""
        lower, compile, call, heard = self._lower, self._compile, self._call, self._heard

        def note_lowered(traced: Any, *args: Any, **kwargs: Any) -> Any:
            lowered = lower(traced, *args, **kwargs)
            if not traced._consts and not traced.jaxpr.is_high:
                _note(lowered._lowering, traced._params)
            return lowered

        def note_compiled(lowered: Any, *args: Any, **kwargs: Any) -> Any:
            compiled = compile(lowered, *args, **kwargs)
            _note(compiled._executable, getattr(lowered._lowering, _NOTE, None))
            return compiled

        def called(compiled: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = getattr(compiled._executable, _NOTE, None)
            if parameters is None:
                return call(compiled, *args, **kwargs)
            arguments = jax.tree_util.tree_leaves((args, kwargs))
            if len(arguments) != len(parameters["donated_invars"]):
                return call(compiled, *args, **kwargs)  # which says what is wrong
            results = heard(
                arguments, parameters, lambda: jax.tree_util.tree_leaves(call(compiled, *args, **kwargs))
            )
            if results is None:
                return call(compiled, *args, **kwargs)
            return jax.tree_util.tree_unflatten(compiled.out_tree, results)

        stages.Traced.lower = note_lowered
        stages.Lowered.compile = note_compiled
        stages.Compiled.__call__ = called

    def remove(self) -> None:
        """Hear of none any more."""
        stages.Traced.lower = self._lower
        stages.Lowered.compile = self._compile
        stages.Compiled.__call__ = self._call


def _note(target: Any, parameters: Any) -> None:
    try:
        setattr(target, _NOTE, parameters)
    except AttributeError:  # of a kind that has no room for it: then its calls are not heard of
        return
