"""The scope of the program, kept where the observer can read it without asking."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from tensortap.engines.torch.program import Program
from tensortap.engines.torch.scopes import Scopes

if TYPE_CHECKING:
    from tensortap.engines.torch.native.decoder import Decoder

__all__ = ["NativeScopes"]


class NativeScopes(Scopes):
    """Optimizers, followed here and told to the observer. Modules it follows itself, with hooks written in C."""

    def __init__(
        self,
        program: Program,
        on_root_module: Callable[[str, nn.Module, Any], None],
        on_optimizer: Callable[[str, Optimizer], None],
        decoder: Decoder,
    ) -> None:
        super().__init__(program, on_root_module, on_optimizer)
        self._decoder = decoder
        self.enter_root = on_root_module
        self._module_hooks = decoder.module_hooks(self._paths)

    def publish(self) -> None:
        """Tell the observer which optimizer steps."""
        scope, frame = self.optimizers[-1] if self.optimizers else ("", None)
        self._decoder.step_in(scope, frame)
