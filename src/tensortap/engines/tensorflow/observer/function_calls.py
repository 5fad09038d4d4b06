"""Has the functions that a program calls eagerly executed by executors that can watch them.

TensorFlow asks for the type of the executor with every call, and makes one for each function and type. So ours is named
in all calls from now on, watched or not: an executor of ours executes as TensorFlow's does while nobody watches, and
there is one state of each random generator. Calls that are traced into a graph keep what they had: graphs can be saved,
and be loaded where we are not.
"""

from __future__ import annotations

import threading
from typing import Any

from tensorflow.python.eager import context

__all__ = ["follow"]

EXECUTOR_TYPE = "tensortap"  # of functions.h

_lock = threading.Lock()
_is_followed = False


def follow() -> None:
    """Name our executor in every call; harmless when called again."""
    global _is_followed
    with _lock:
        if _is_followed:
            return
        _is_followed = True
        options: Any = context.FunctionCallOptions
        theirs = options.as_attrs

        def as_attrs(self: Any) -> dict[str, Any]:
            attributes: dict[str, Any] = theirs(self)
            if not attributes["executor_type"] and context.executing_eagerly():
                attributes["executor_type"] = EXECUTOR_TYPE
            return attributes

        options.as_attrs = as_attrs
