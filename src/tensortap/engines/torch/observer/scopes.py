"""The scope of the program, kept where the observer can read it without asking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensortap.engines.torch.program import Program
from tensortap.engines.torch.scopes import Scopes

if TYPE_CHECKING:
    from tensortap.engines.torch.observer.decoder import Decoder

__all__ = ["NativeScopes"]


class NativeScopes(Scopes):
    """Optimizers, followed here and told to the observer. Modules it follows itself, with hooks written in C.

    Args:
        program: gives optimizers their names.
        decoder: of the runs that are observed.
        module_hooks: what PyTorch calls when a module is entered and left.
    """

    def __init__(self, program: Program, decoder: Decoder, module_hooks: tuple[Any, Any]) -> None:
        super().__init__(program, decoder.name_module_inputs, decoder.name_optimizer_state)
        self._decoder = decoder
        self._module_hooks = module_hooks

    def publish(self) -> None:
        """Tell the observer which optimizer steps."""
        scope, frame = self.optimizers[-1] if self.optimizers else ("", None)
        self._decoder.step_in(scope, frame)

    def _known_paths(self) -> dict[int, str]:
        return {}

    def _is_ours(self) -> bool:
        return self._decoder.is_busy and super()._is_ours()
