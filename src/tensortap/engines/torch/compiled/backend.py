"""The two compilers of a program that may be watched: inductor as it is, and inductor with taps.

A run that nobody watches executes what inductor made of the program, unchanged. In a watched run PyTorch is told
to use `tapped` as its backend, compiles the program once more for it, and from then on keeps both versions side
by side.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from tensortap.engines.torch.compiled.collector import current
from tensortap.engines.torch.compiled.graph import Module, TappedGraph, original_name

__all__ = ["inductor", "tapped"]

log = logging.getLogger("tensortap.engine")


def inductor(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend `tensortap` of torch.compile: inductor, in a program whose watched runs may stay compiled.

    Args:
        module: the graph, from torch.compile.
        example_inputs: inputs for it.
        mode: as for inductor.
        options: as for inductor.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    patches = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    compiled: Any = compile_fx(module, example_inputs, config_patches=patches or None)
    return compiled  # type: ignore[no-any-return]


def tapped(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile with inductor, and let every graph report the health of what it computes."""
    import torch._functorch.config as functorch_config
    from torch._inductor.compile_fx import compile_fx

    # That cache goes by the graph before it is given its taps, so it would hand out the version without them.
    with functorch_config.patch(enable_autograd_cache=False):
        compiled: Any = compile_fx(module, example_inputs, inner_compile=_Pass(_compiled_module()).compile)
    return compiled  # type: ignore[no-any-return]


class _Pass:
    """Compiles the forward graph of a function and later its backward graph."""

    def __init__(self, root: Module | None) -> None:
        self._root = root
        self._forward: TappedGraph | None = None

    def compile(
        self,
        module: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        is_backward: bool = False,
        **options: Any,
    ) -> Any:
        """Called by inductor for each graph."""
        from torch._guards import TracingContext
        from torch._inductor.compile_fx import compile_fx_inner

        def compiled(graph_module: fx.GraphModule) -> Any:
            return compile_fx_inner(graph_module, example_inputs, is_backward=is_backward, **options)

        if is_backward and self._forward is None:
            return compiled(module)
        untapped = fx.GraphModule(module, copy.deepcopy(module.graph))
        try:
            graph = TappedGraph(module, self._root, self._forward if is_backward else None)
            graph.insert_taps()
            code = compiled(module)
        except Exception:  # ours, and no reason to fail the user's step
            log.warning("tensortap could not tap a compiled graph; it runs unseen", exc_info=True)
            return compiled(untapped)
        if not is_backward:
            self._forward = graph
        context = TracingContext.try_get()
        if context is not None and context.output_strides is not None:
            # AOTAutograd finds the layout of what is saved for the backward pass at the end of this list.
            del context.output_strides[len(graph.outputs) :]
        return _without_summaries(code, graph)


def _without_summaries(code: Callable[[list[Any]], Sequence[Any]], graph: TappedGraph) -> Callable[..., Any]:
    """Code whose last outputs are summaries, as the program knows it; they go to the collector of the run."""
    own_outputs = len(graph.outputs)

    def run(inputs: list[Any]) -> Sequence[Any]:
        collector = current()
        if collector is None:
            return code(inputs)[:own_outputs]
        # What compiled code calls inside is part of its own graph; an interceptor must not see it again.
        with torch._C._DisableTorchDispatch():
            call = collector.before(graph, inputs)
            results = code(inputs)
            outputs, rows = results[:own_outputs], list(results[own_outputs:])
            collector.after(call, outputs, torch.stack(rows).numpy() if rows else np.empty((0, 0)))
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]  # the list it takes is emptied, to free inputs early
    return run


def _compiled_module() -> Module | None:
    """The module a method of which PyTorch is compiling; operators called directly in it do not name it."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        translator = InstructionTranslator.current_tx()
        code, variables = translator.f_code, translator.f_locals
    except AttributeError:  # called by hand, or by another version of PyTorch
        return None
    method = original_name(code.co_name)
    for name in code.co_varnames[: code.co_argcount]:
        value = variables.get(name)
        if isinstance(value, nn.Module) and hasattr(type(value), method):
            return Module(id(value), type(value).__name__)
    return None
