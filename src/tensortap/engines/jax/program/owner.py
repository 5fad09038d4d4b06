"""Whose program it is: one that the user wrote, or one of JAX that serves everybody who calls it."""

from __future__ import annotations

from typing import Any

from jax._src import core
from jax.extend.core import Jaxpr

from tensortap.engines.jax.lines import is_of_jax

__all__ = ["is_of_library"]

_WRAPPERS = ("pmap.py",)


def is_of_library(jaxpr: Jaxpr) -> bool:
    """Whether a program is a function of `jax.numpy` or a single operation, with nothing of the user's inside.

    A loop or a branch that is called outside of compiled code is a single operation, too, but what it executes is the
    user's; and so is what `pmap` wraps.
    """
    file = _file_of(jaxpr)
    if not is_of_jax(file) or str(file).endswith(_WRAPPERS):
        return False
    return not any(_has_user_code(inner) for inner in core.subjaxprs(jaxpr))


def _has_user_code(jaxpr: Jaxpr) -> bool:
    file = _file_of(jaxpr)
    if file is not None and not is_of_jax(file):
        return True
    return any(_has_user_code(inner) for inner in core.subjaxprs(jaxpr))


def _file_of(jaxpr: Any) -> str | None:
    return getattr(jaxpr.debug_info, "func_filename", None)
