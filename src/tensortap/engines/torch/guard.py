"""A look at what runs leave behind that nobody watches: is everything still finite?

Memory is read once, without an operation of PyTorch, so that nothing of the program is touched. After the step of an
optimizer its gradients and parameters are read: a NaN in the step shows in the gradients, an infinity that an optimizer
makes itself in the parameters. What the backward pass begins with is the loss, which may be bad without reaching
either. Where no optimizer steps, the models' parameters are read after a backward pass, and what models return.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from tensortap.engines.torch import backward_passes
from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.glance import first_bad, has_nan, is_bad, tensors_in
from tensortap.engines.torch.program import Program

__all__ = ["LOSS", "Guard", "SessionGuard"]

LOSS = "the loss"


class Guard:
    """Looks at a program when it is told to. Each look returns what is bad, in words, or None.

    Args:
        program: knows what parameters are called.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._excused: Any = WeakIdKeyDictionary()
        self._odd_outputs: Any = WeakIdKeyDictionary()
        self._bad_loss = False
        self._went_back = False
        self._thread = 0

    # --- what is no news ---------------------------------------------------------------------------

    def excuse(self, optimizers: Iterable[Optimizer]) -> None:
        """Take parameters that are bad now for meant: they came out of a run that was watched."""
        self._excused = WeakIdKeyDictionary()
        self._excuse(self._parameters(optimizers))

    def excuse_new(self, optimizer: Optimizer) -> None:
        """The same for those of an optimizer that has just been made."""
        self._excuse([each for group in optimizer.param_groups for each in group["params"]])

    def excuse_output(self, module: nn.Module, output: Any) -> None:
        """The same for what a model returns in a run that is watched."""
        if module not in self._odd_outputs and self._is_odd(output):
            self._odd_outputs[module] = True

    # --- looking -----------------------------------------------------------------------------------

    def after_step(self, optimizer: Optimizer) -> str | None:
        """What is bad after the step of an optimizer."""
        self._went_back = False
        bad_loss, self._bad_loss = self._bad_loss, False
        parameters = _parameters_of(optimizer)
        # A gradient scaler lets some optimizers find out themselves that a step is to be skipped.
        skips = getattr(optimizer, "found_inf", None)
        is_skipped = isinstance(skips, torch.Tensor) and bool(skips)
        found = first_bad(parameters, not is_skipped, self._excused)
        if found is not None:
            return self._named(*found)
        return LOSS if bad_loss and not is_skipped else None

    def is_fine_after(self, optimizer: Optimizer) -> bool:
        """Whether nothing is bad after the step of an optimizer; `after_step` is to say what is."""
        if self._bad_loss or first_bad(_parameters_of(optimizer), True) is not None:
            return False
        self._went_back = False
        return True

    def after_skipped_step(self) -> None:
        """A gradient scaler leaves a step out: what was bad in it is as it should be."""
        self._bad_loss = self._went_back = False

    def after_backward(self) -> str | None:
        """What is bad in models without an optimizer, if there was a backward pass since the last look."""
        if not self._went_back:
            return None
        self._went_back = False
        bad_loss, self._bad_loss = self._bad_loss, False
        found = first_bad(self._parameters(()), True, self._excused)
        if found is not None:
            return self._named(*found)
        return LOSS if bad_loss else None

    def output(self, module: nn.Module, output: Any) -> str | None:
        """What is bad in what a model has returned: NaN, for many return infinities that are meant."""
        if self._is_odd(output) and module not in self._odd_outputs:
            path = self._program.module_paths().get(id(module), type(module).__name__)
            return f"the output of {path}"
        return None

    def result(self, value: Any) -> str | None:
        """What is bad in what a step has returned."""
        named = value.items() if isinstance(value, Mapping) else [("", value)]
        for name, each in named:
            if self._is_odd(each):
                return f"the result {name!r}" if name else "the result"
        return None

    # --- the loss ----------------------------------------------------------------------------------

    def listen(self) -> None:
        """Look at what backward passes of this thread begin with, until told otherwise."""
        self._thread = threading.get_ident()
        backward_passes.listen(self)

    def stop_listening(self) -> None:
        """Leave backward passes alone; harmless when called again."""
        backward_passes.stop_listening(self)
        self._bad_loss = False

    def backward_begins(self, outputs: Any, accumulates: bool, keeps: bool) -> None:
        """A backward pass begins, with these."""
        if not accumulates or threading.get_ident() != self._thread:
            return
        self._went_back = True
        try:
            losses = [each for each in outputs if type(each) is torch.Tensor and each.dim() == 0]
            self._bad_loss = bool(losses) and first_bad(losses) is not None
        except Exception:  # ours, and no reason to lose a backward pass
            return

    def backward_ends(self, gradients: Any) -> None:
        """Nothing is asked of what it leaves before a step is taken."""

    # ---

    def _excuse(self, parameters: list[torch.Tensor]) -> None:
        if first_bad(parameters) is not None:
            for each in filter(is_bad, parameters):
                self._excused[each] = True

    def _parameters(self, optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
        """Those of all optimizers and models, each once."""
        found: dict[int, torch.Tensor] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                found.update((id(each), each) for each in group["params"])
        for _, parameter in self._program.parameters():
            found.setdefault(id(parameter), parameter)
        return list(found.values())

    def _named(self, parameter: torch.Tensor, in_gradient: bool) -> str:
        paths = {id(each): path for path, each in self._program.parameters()}
        name = paths.get(id(parameter), "a parameter")
        return f"the gradient of {name}" if in_gradient else name

    def _is_odd(self, value: Any) -> bool:
        tensors = list(tensors_in(value))
        return first_bad(tensors) is not None and any(map(has_nan, tensors))


def _parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    groups = optimizer.param_groups
    if len(groups) == 1:
        parameters: list[torch.Tensor] = groups[0]["params"]
        return parameters
    return [each for group in groups for each in group["params"]]


class SessionGuard:
    """The guard of a session whose runs are blocks or functions; see `tensortap.seam.base.Guard`."""

    def __init__(self, program: Program) -> None:
        self._guard = Guard(program)
        self._program = program
        self._handle: Any = None
        self._thread = 0
        self._bad: str | None = None
        self._stepped = False

    def begin(self) -> None:
        """A run begins that nobody watches."""
        self._remove()
        self._bad, self._stepped = None, False
        self._thread = threading.get_ident()
        self._guard.excuse(self._program.optimizers.values())
        self._guard.listen()
        self._handle = register_optimizer_step_post_hook(self._after_step)

    def end(self) -> str | None:
        """The run is over; what is bad in it, in words, None if nothing is."""
        if self._handle is None:
            return None
        if self._bad is None and not self._stepped:
            self._bad = self._guard.after_backward()
        self._remove()
        bad, self._bad = self._bad, None
        return bad

    def returned(self, value: Any) -> None:
        """The run has ended with this result."""
        if self._handle is not None and self._bad is None:
            self._bad = self._guard.result(value)

    def _remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            self._guard.stop_listening()

    @never_compiled  # type: ignore[type-var]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == self._thread:
            self._stepped = True
            self._bad = self._bad or self._guard.after_step(optimizer)
