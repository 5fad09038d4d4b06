"""The portable interceptor: a dispatch mode, called by PyTorch for every ATen op below autograd.

It is the only interceptor that can replace values. What differs from an unobserved run: autograd adds
gradients out of place (`add` instead of `add_`, the same values), takes another formula for a few gradients
(`prod`, complex `cumprod`: the last bits may differ), and compiled functions run eagerly, so that the ops
inside them can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._guards import TracingContext
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from tensortap.engines.torch.eager import compilation_suspended, compiled_with, never_compiled
from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.gradients import gradients_announced
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.making_way import RemovableMode, makes_way, making_way
from tensortap.engines.torch.memory import shows_its_ops
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.recorder import Recorder
from tensortap.engines.torch.schema import op_of
from tensortap.engines.torch.tracing import is_being_traced, set_aside_while_traced
from tensortap.errors import TensortapError
from tensortap.seam.graph import Graph

__all__ = ["DispatchInterceptor"]

_fake_mode: Any = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class DispatchInterceptor:
    """Sees, and can replace, the output of every op; costs about 20 µs an op."""

    can_interfere = True

    @contextmanager
    def observe(
        self, plan: RunPlan, program: Program, graph: Graph, names: RunNames
    ) -> Iterator[Observation]:
        """Watch the ops of the block."""
        observation = Observation()
        with ExitStack() as installed:
            try:
                recorder = Recorder(plan, program, names, observation)
                mode = _Mode
                if plan.stays_compiled and plan.watching is not None:
                    from tensortap.engines.torch.compiled import collecting, tapped

                    mode = _ModeAroundCompiled
                    installed.enter_context(compiled_with(tapped))
                    installed.enter_context(collecting(recorder.graph_taps(plan.watching)))
                else:
                    installed.enter_context(compilation_suspended())
                installed.enter_context(recorder.recording())
                installed.enter_context(recorder.scopes)
                installed.enter_context(gradients_announced(program, recorder.on_gradient))
                entered = installed.enter_context(mode(recorder, observation))
                if makes_way(plan):
                    installed.enter_context(making_way(entered))
                installed.enter_context(set_aside_while_traced(entered))
            except Exception:
                installed.close()
                observation.fault("starting to observe")
            try:
                yield observation
            finally:
                graph.record(observation.nodes)

    def release(self) -> None:
        """Nothing ever stays installed."""

    def replace(self, names: RunNames, heir: RunNames) -> bool:
        """All that is known is in the table itself."""
        return True


def _execute(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call an op, also one of the few that do not take the numbers that a mode is given for constants of a script."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        tensors = _numbers_as_tensors(func, args)
        if tensors is None:
            raise
    return func(*tensors, **kwargs)


def _numbers_as_tensors(func: Any, args: Any) -> list[Any] | None:
    """Arguments with tensors where numbers stand for them; None if none does."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return None
    wrong = [
        type(value) in _NUMBERS and isinstance(argument.type, torch.TensorType)
        for value, argument in zip(args, schema.arguments, strict=False)
    ]
    if not any(wrong):
        return None
    return [
        torch.tensor(value, dtype=_NUMBERS[type(value)]) if is_wrong else value
        for value, is_wrong in zip(args, wrong, strict=True)
    ]


def _lazy_views_resolved() -> Any:
    """Let kernels see conjugated and negated views as such.

    Inside a dispatch mode PyTorch takes them for resolved already, and kernels that make such views themselves
    (`pinv` of complex matrices) would compute with unconjugated data.
    """
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    exclude = exclude.remove(torch._C.DispatchKey.Conjugate).remove(torch._C.DispatchKey.Negative)
    return torch._C._ForceDispatchKeyGuard(include, exclude)


@contextmanager
def _without_modes_above(ours: TorchDispatchMode | None) -> Iterator[None]:
    """Take modes of the program off the stack for a moment, down to ours: runs begin and end within their blocks.

    Ours is thus below all others, which see what they would see without it.
    """
    lifted: list[TorchDispatchMode] = []
    while (stack := _own_modes()) and stack[-1] is not ours:
        lifted.append(_pop_mode())
    try:
        yield
    finally:
        for mode in reversed(lifted):
            _push_mode(mode)


def _own_modes() -> list[TorchDispatchMode]:
    """Modes that are no part of PyTorch's machinery, which has places of its own."""
    stack = _get_current_dispatch_mode_stack()
    return [mode for mode in stack if getattr(mode, "_mode_key", None) is None]


class _Mode(RemovableMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap every call in its own guard against being compiled, which costs as much as half of
        # our work and imports the whole compiler.
        return False

    def __init__(self, recorder: Recorder, observation: Observation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._observation = observation
        self._generation = generation()

    def __enter__(self) -> Any:
        with _without_modes_above(None):
            return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        with _without_modes_above(self):
            super().__exit__(*error)

    @never_compiled  # type: ignore[type-var]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op = op_of(func)
        if (
            op.transparent
            or generation() != self._generation
            or is_being_traced()
            or _fake_mode(_FAKE) is not None
        ):
            return func(*args, **kwargs)
        if self._recorder.leaves_out():
            return func(*args, **kwargs)
        if types and _shows_its_ops(args, kwargs):
            self._recorder.enter_wrapper()
            return NotImplemented  # and PyTorch has the class execute it under this mode
        try:
            call = self._recorder.before(op, args, kwargs)
        except TensortapError:  # what the run was asked for cannot be: the caller must know
            raise
        except Exception:
            self._observation.fault(f"before {op.op_type}")
            return func(*args, **kwargs)
        try:
            if call.is_complex:
                with _lazy_views_resolved():
                    result = _execute(func, call.args, call.kwargs)
            else:
                result = _execute(func, call.args, call.kwargs)
        except Exception as error:
            if self._observation.failed is None or self._observation.failed[0] is not error:
                self._observation.failed = (error, self._recorder.failed_node(call))
            raise
        try:
            return self._recorder.after(call, result)
        except TensortapError:
            raise
        except Exception:
            self._observation.fault(f"after {op.op_type}")
            return result


def _shows_its_ops(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an op is seen as those that a wrapper among its arguments executes.

    Other modes would not see it then: under one of them the op is seen as a whole.
    """
    if torch._C._len_torch_dispatch_stack():
        return False
    leaves = pytree.tree_leaves((args, kwargs))
    return any(isinstance(leaf, torch.Tensor) and shows_its_ops(leaf) for leaf in leaves)


class _ModeAroundCompiled(_Mode):  # type: ignore[no-untyped-call]
    """Sees the ops around compiled functions, and neither what is inside them nor their being compiled."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Otherwise PyTorch would give up compiling whatever is called under the mode, for good.
        return True

    @never_compiled  # type: ignore[type-var]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if TracingContext.try_get() is not None or _shows_the_same(func, args):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _shows_the_same(func: Any, args: Any) -> bool:
    """Whether this is the view through which a compiled function returns an output, unchanged."""
    return func is torch.ops.aten._unsafe_view.default and args[0].shape == torch.Size(args[1])
