"""Hearing of backward passes: one place before PyTorch's way into them, for all who listen, whichever ends first."""

from __future__ import annotations

from typing import Any, Protocol

import torch

__all__ = ["Listener", "listen", "stop_listening"]


class Listener(Protocol):
    """Hears of every backward pass of the process. It must not raise."""

    def backward_begins(self, outputs: Any, accumulates: bool, keeps: bool) -> None:
        """A pass begins at these tensors; whether gradients are put into place, and not only returned, and whether its
        graph can be used again."""

    def backward_ends(self, gradients: Any) -> None:
        """It is over, without an error, and has returned these."""


_listeners: list[Listener] = []
_theirs: Any = None
_ours: Any = None


def listen(listener: Listener) -> None:
    """Tell somebody of backward passes from now on."""
    if listener not in _listeners:
        _listeners.append(listener)
        _stand_before_backward()


def stop_listening(listener: Listener) -> None:
    """Tell him no more; harmless when called again."""
    if listener in _listeners:
        _listeners.remove(listener)
        _stand_before_backward()


def _stand_before_backward() -> None:
    global _theirs, _ours
    autograd: Any = torch.autograd
    if _listeners and _theirs is None:
        _theirs = theirs = autograd._engine_run_backward

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            heard = tuple(_listeners)
            keeps = any(args[1:3])  # whether the graph is kept, and whether one of the gradients is made
            for listener in heard:
                listener.backward_begins(outputs, bool(kwargs.get("accumulate_grad")), keeps)
            result = theirs(outputs, *args, **kwargs)
            for listener in heard:
                listener.backward_ends(result)
            return result

        _ours = autograd._engine_run_backward = run_backward
    elif not _listeners and _theirs is not None and autograd._engine_run_backward is _ours:
        autograd._engine_run_backward, _theirs = _theirs, None
