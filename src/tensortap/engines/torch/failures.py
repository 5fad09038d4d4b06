"""Errors of operations, mapped once to the `OpError` family.

Only what an operation raised is mapped. What the program raises itself (`raise ValueError(...)`, the end of
an iterator) passes unchanged, and so do Python's own kinds (`TypeError`, `IndexError`, …) wherever they
come from. The rule does not depend on whether a run is intercepted; interception only adds the node.
"""

from __future__ import annotations

import dis
from types import TracebackType

import torch

from tensortap.engines.torch.lines import capture_stack, first_user_frame
from tensortap.errors import (
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from tensortap.records import Node

__all__ = ["as_op_error"]

_OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory")
_NETWORK = tuple(
    getattr(torch.distributed, name)
    for name in ("DistBackendError", "DistNetworkError", "DistStoreError")
    if hasattr(torch.distributed, name)
)


def as_op_error(error: BaseException, failed: tuple[BaseException, Node] | None) -> OpError | None:
    """The `OpError` for an exception that left the step, or None when it is the program's own."""
    kind = _kind_of(error)
    if kind is None:
        return None
    node = failed[1] if failed is not None and failed[0] is error else None
    if node is None and _was_raised_by_python(error.__traceback__):
        return None
    if node is not None:
        place = f" in {node.name!r} ({node.op_type})" + (f" at {node.source}" if node.source else "")
    else:
        line = _user_line(error.__traceback__)
        place = f" at {line}" if line else ""
    mapped = kind(node, f"{error}\n  raised{place}" if place else str(error))
    return mapped.with_traceback(error.__traceback__)


def _kind_of(error: BaseException) -> type[OpError] | None:
    if isinstance(error, torch.OutOfMemoryError):
        return ResourceExhaustedError
    if _NETWORK and isinstance(error, _NETWORK):
        return UnavailableError
    if type(error) is NotImplementedError:
        return UnimplementedError
    if type(error) is RuntimeError:
        text = str(error)
        return (
            ResourceExhaustedError if any(each in text for each in _OUT_OF_MEMORY) else InvalidArgumentError
        )
    return None


def _was_raised_by_python(traceback: TracebackType | None) -> bool:
    """Whether the innermost frame was executing a `raise` statement, rather than calling an operator."""
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code.co_code
    return dis.opname[code[traceback.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _user_line(traceback: TracebackType | None) -> str:
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = first_user_frame(traceback.tb_frame)
    if frame is None:
        return ""
    stack = capture_stack(frame)
    return str(stack[-1]) if stack else ""
