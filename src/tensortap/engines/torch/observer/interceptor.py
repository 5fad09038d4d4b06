"""The fast interceptor: an observer in C++ that PyTorch calls for every operator. It can only look.

What differs from the dispatch mode: autograd adds gradients in place (`add_`), as it does when nobody looks, and
takes its usual formulas; higher-order operators are seen as the operators they execute.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tensortap.engines.torch.dispatch import DispatchInterceptor
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.observer.decoder import Decoder
from tensortap.engines.torch.observer.library import library
from tensortap.engines.torch.program import Program
from tensortap.seam.graph import Graph

__all__ = ["NativeInterceptor"]


class NativeInterceptor:
    """Sees the outputs of every operator; costs about a microsecond an operator.

    Raises:
        NativeBuildError: there is no observer for this torch, and none can be built.
    """

    can_interfere = False

    def __init__(self) -> None:
        library()
        self._decoders: weakref.WeakKeyDictionary[RunNames, Decoder] = weakref.WeakKeyDictionary()

    @contextmanager
    def observe(
        self, plan: RunPlan, program: Program, graph: Graph, names: RunNames
    ) -> Iterator[Observation]:
        """Watch the operators of the block."""
        decoder = self._decoders.get(names)
        if decoder is None:
            decoder = self._decoders[names] = Decoder(names)
        if decoder.is_busy:  # the step runs its own session; that inner run is none of the observer's
            with DispatchInterceptor().observe(plan, program, graph, names) as observation:
                yield observation
            return
        observation = Observation()
        recording: AbstractContextManager[None] = nullcontext()
        try:
            try:
                begun = decoder.recording(plan, program, observation)
                begun.__enter__()
                recording = begun
            except Exception:
                observation.fault("starting to observe")
            try:
                yield observation
            except BaseException as error:
                recording.__exit__(type(error), error, error.__traceback__)
                raise
            recording.__exit__(None, None, None)
        finally:
            graph.record(observation.nodes)

    def replace(self, names: RunNames, heir: RunNames) -> bool:
        """Go on with another observer, which knows only what has to do with bad values of earlier runs."""
        decoder = self._decoders.get(names)
        if decoder is None:
            return True
        if decoder.is_busy:
            return False
        decoder.release_here()
        successor = Decoder(heir)
        successor.inherit(decoder)
        del self._decoders[names]
        self._decoders[heir] = successor
        return True

    def release(self) -> None:
        """Remove what has stayed installed for this thread."""
        for decoder in list(self._decoders.values()):
            decoder.release_here()
