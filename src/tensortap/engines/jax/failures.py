"""Operations that fail: JAX refuses them while it traces, and says neither which one nor where."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax._src import source_info_util
from jax._src.interpreters import partial_eval as pe

from tensortap.engines.jax.lines import stack_from
from tensortap.engines.jax.program import scope_of
from tensortap.engines.observe.observation import Observation
from tensortap.errors import InvalidArgumentError, OpError
from tensortap.records import Node

__all__ = ["noting_failures", "op_error"]


@contextmanager
def noting_failures(seen: Observation) -> Iterator[None]:
    """Note the operation that cannot be traced in the block."""
    original: Any = pe.DynamicJaxprTrace.default_process_primitive
    original_reset: Any = source_info_util.reset_name_stack
    thread = threading.get_ident()
    around: list[str] = []

    @contextmanager
    def reset() -> Iterator[None]:
        # What is traced inside another function has names of its own; the scopes around it belong to them.
        around.append(str(source_info_util.current_name_stack()))
        try:
            with original_reset():
                yield
        finally:
            around.pop()

    def process(trace: Any, primitive: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(trace, primitive, *args, **kwargs)
        except Exception as error:
            if threading.get_ident() == thread and seen.failed is None:
                scopes = [*around, str(source_info_util.current_name_stack())]
                name = "".join(scope_of(each)[0] for each in scopes) + primitive.name
                seen.failed = (error, Node(name, primitive.name, stack=stack_from(sys._getframe(1))))
            raise

    pe.DynamicJaxprTrace.default_process_primitive = process
    source_info_util.reset_name_stack = reset
    try:
        yield
    finally:
        pe.DynamicJaxprTrace.default_process_primitive = original
        source_info_util.reset_name_stack = original_reset


def op_error(error: BaseException, failed: tuple[BaseException, Node] | None) -> OpError | None:
    """The error with node and line for one that an operation raised."""
    if failed is None or not _is_from(error, failed[0]):
        return None
    node = failed[1]
    return InvalidArgumentError(node, f"{error}\n  raised in {node.name!r} at {node.source}")


def _is_from(error: BaseException, source: BaseException) -> bool:
    found: BaseException | None = error
    while found is not None:
        if found is source:
            return True
        found = found.__cause__ or found.__context__
    return False
