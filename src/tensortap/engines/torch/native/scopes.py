"""The scope of the program, kept where the observer can read it without asking."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.scopes import Scopes

if TYPE_CHECKING:
    from tensortap.engines.torch.native.decoder import Decoder

__all__ = ["PublishedScopes"]


class PublishedScopes(Scopes):
    """Scopes that tell the observer whenever they change."""

    def __init__(
        self,
        program: Program,
        on_root_module: Callable[[str, nn.Module, Any], None],
        on_optimizer: Callable[[str, Optimizer], None],
        decoder: Decoder,
    ) -> None:
        super().__init__(program, on_root_module, on_optimizer)
        self._decoder = decoder
        self._shared = decoder.shared

    @never_compiled  # type: ignore[type-var]
    def publish(self) -> None:
        """Tell the observer where the program is."""
        shared = self._shared
        if self.modules:
            scope, recomputed = self.modules[-1]
            shared.scope = self._decoder.scope(scope)
            shared.recomputed = recomputed
            shared.in_optimizer = 0
        else:
            shared.recomputed = 0
            shared.in_optimizer = bool(self.optimizers)
            scope, frame = self.optimizers[-1] if self.optimizers else ("", None)
            shared.scope = self._decoder.scope(scope)
            self._decoder.step_in_frame(frame)
