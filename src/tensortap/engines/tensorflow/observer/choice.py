"""Which observer sees the tensors of executed graphs: the native one where it can be built."""

from __future__ import annotations

import logging
import os

from tensortap.engines.tensorflow.observer.interface import Observer
from tensortap.errors import InvalidArgumentError, NativeBuildError
from tensortap.suggest import nearest

__all__ = ["make_observer"]

log = logging.getLogger("tensortap.engine")

VARIABLE = "TENSORTAP_INTERCEPTOR"
_CHOICES = ("auto", "native", "portable")
_PORTABLE = (
    "portable",
    "dispatch",
)  # the second is what the other engine calls its own, and is set for a whole program


def make_observer(choice: str | None = None) -> Observer:
    """The observer for this process.

    Args:
        choice: `native`, `portable`, or `auto`: native if it can be built here. Where no choice is made, the
            environment variable TENSORTAP_INTERCEPTOR makes it.

    Raises:
        InvalidArgumentError: an unknown choice.
        NativeBuildError: the native one was asked for by name and cannot be had.
    """
    given = choice if choice is not None else os.environ.get(VARIABLE, "auto")
    if given not in (*_CHOICES, *_PORTABLE):
        where = "observer=" if choice is not None else f"{VARIABLE}="
        raise InvalidArgumentError(
            None, f"{where}{given!r}: expected one of {', '.join(_CHOICES)}.{nearest(given, _CHOICES)}"
        )
    # Imported here: each must work, and be named as the reason, where the other does not.
    from tensortap.engines.tensorflow.observer.portable import PortableObserver

    if given in _PORTABLE:
        return PortableObserver()
    from tensortap.engines.tensorflow.observer.native import NativeObserver

    try:
        return NativeObserver()
    except NativeBuildError as error:
        if given == "native":
            raise
        log.warning(
            "TensorFlow is watched by its own debug ops, which is several times slower and sees no functions: %s",
            error,
        )
        return PortableObserver()
