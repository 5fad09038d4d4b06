"""The portable interceptor: a dispatch mode, called by PyTorch for every ATen op below autograd.

It is the only interceptor that can replace values. Two things differ from an unobserved run, without any
effect on values: autograd adds gradients out of place (`add` instead of `add_`), and compiled functions
run eagerly for the run, so that the ops inside them can be seen.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensortap.engines.graph import Graph
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.names import NameTable
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.recorder import Recorder
from tensortap.engines.torch.schema import op_of
from tensortap.errors import TensortapError

__all__ = ["DispatchInterceptor"]


class DispatchInterceptor:
    """Sees, and can replace, the output of every op; costs about 20 µs an op."""

    can_feed = True

    @contextmanager
    def observe(
        self, plan: RunPlan, program: Program, graph: Graph, names: NameTable
    ) -> Iterator[Observation]:
        """Watch the ops of the block."""
        observation = Observation()
        with ExitStack() as installed:
            try:
                recorder = Recorder(plan, program, names, observation)
                if "torch._dynamo" in sys.modules:  # nothing is compiled unless it has been imported
                    installed.enter_context(torch.compiler.set_stance("force_eager"))
                    installed.enter_context(_without_warning_about_our_hooks())
                else:
                    installed.callback(_forget_compilations)
                installed.enter_context(recorder.recording())
                installed.enter_context(recorder.scopes)
                installed.enter_context(recorder.gradient_hooks())
                installed.enter_context(_Mode(recorder, observation))
            except Exception:
                installed.close()
                observation.fault("starting to observe")
            try:
                yield observation
            finally:
                graph.record(observation.nodes)


def _forget_compilations() -> None:
    """Let what was compiled for the first time under our eyes be compiled again.

    PyTorch does not compile under a dispatch mode, and remembers that for good.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@contextmanager
def _without_warning_about_our_hooks() -> Iterator[None]:
    """Keep compiled modules from warning the user about global hooks that are ours."""
    # Not catch_warnings: it would undo what the program itself does to its filters inside the block.
    warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global hooks")
    ours = warnings.filters[0]
    try:
        yield
    finally:
        if ours in warnings.filters:
            cast("list[Any]", warnings.filters).remove(ours)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap every call in a guard against being compiled. Compilation is switched off while
        # we observe anyway, and the guard costs as much as half of our own work.
        return False

    def __init__(self, recorder: Recorder, observation: Observation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._observation = observation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op = op_of(func)
        if op.transparent:
            return func(*args, **kwargs)
        try:
            call = self._recorder.before(op, args, kwargs)
        except TensortapError:  # what the run was asked for cannot be: the caller must know
            raise
        except Exception:
            self._observation.fault(f"before {op.op_type}")
            return func(*args, **kwargs)
        try:
            result = func(*call.args, **call.kwargs)
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
