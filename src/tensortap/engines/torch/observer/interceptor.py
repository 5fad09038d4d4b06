"""The fast interceptor: an observer in C++ that PyTorch calls for every operator. It can only look.

What differs from the dispatch mode: autograd adds gradients in place (`add_`), as it does when nobody looks, and
takes its usual formulas; higher-order operators are seen as the operators they execute.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager

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

    def observe(
        self, plan: RunPlan, program: Program, graph: Graph, names: RunNames
    ) -> AbstractContextManager[Observation]:
        """Watch the operators of the block."""
        decoder = self._decoders.get(names)
        if decoder is None:
            decoder = self._decoders[names] = Decoder(names)
        if decoder.is_busy:  # the step runs its own session; that inner run is none of the observer's
            return DispatchInterceptor().observe(plan, program, graph, names)
        return _Observed(decoder, plan, program, graph)

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


class _Observed:
    """One run. Small ones begin and end more often than anything else here does, so it is no generator."""

    __slots__ = ("_decoder", "_graph", "_has_begun", "_observation", "_plan", "_program")

    def __init__(self, decoder: Decoder, plan: RunPlan, program: Program, graph: Graph) -> None:
        self._decoder, self._plan, self._program, self._graph = decoder, plan, program, graph
        self._observation = Observation()
        self._has_begun = False

    def __enter__(self) -> Observation:
        try:
            self._decoder.begin(self._plan, self._program, self._observation)
            self._has_begun = True
        except Exception:
            self._observation.fault("starting to observe")
        return self._observation

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if self._has_begun:
                self._decoder.end(error)
        finally:
            self._graph.record(self._observation.nodes)
