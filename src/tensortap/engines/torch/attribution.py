"""To what in the program an op belongs: a module, the gradient of another op, an optimizer and a parameter of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch.calls import Call
from tensortap.engines.torch.outside import Outside
from tensortap.engines.torch.places import Places
from tensortap.engines.torch.program import module_holding
from tensortap.engines.torch.schema import Op
from tensortap.engines.torch.scopes import Scopes
from tensortap.records import Position

__all__ = ["Attribution"]

_current_autograd_node = torch._C._current_autograd_node
_sequence_number = torch._C._autograd._get_sequence_nr
_NO_SEQUENCE_NUMBER = 2**64 - 1  # of AccumulateGrad nodes, which belong to a parameter instead


class Attribution:
    """Which op of a run is where, and which autograd nodes are whose.

    Args:
        scopes: the modules and optimizers that are executing.
        outside: knows the paths of parameters.
        places: the values that have a name.
    """

    def __init__(self, scopes: Scopes, outside: Outside, places: Places) -> None:
        self._scopes = scopes
        self._outside = outside
        self._places = places
        self._forward_of: dict[int, NameEntry] = {}
        self._next_sequence = _sequence_number()
        self._previous: NameEntry | None = None
        self._previous_wrote = False
        self._in_wrapper = False

    def scope(self, inputs: Sequence[str]) -> tuple[str, NameEntry | None, str | None]:
        """The scope of the next op; its forward node in a gradient; its parameter in an optimizer."""
        scopes = self._scopes
        running = _current_autograd_node()
        if running is not None and not scopes.in_recomputation():
            sequence = running._sequence_nr()
            forward = self._forward_of.get(sequence)
            if forward is not None:
                return forward.gradient_scope, forward, None
            if sequence == _NO_SEQUENCE_NUMBER:
                return f"gradients/{self._leaf_name(running)}/", None, None
            return f"gradients/{running.name()}/", None, None  # its forward op ran before this run
        scope = scopes.forward_scope()
        if scopes.optimizers and not scopes.modules:
            known = self._places.owners
            owners = {known[name] for name in inputs if name in known}
            if len(owners) == 1:
                owner = owners.pop()
                return f"{scope}{owner}/", None, owner
        return scope, None, None

    def position(self, call: Call) -> Position:
        """Where in the program an op is executed that has a new name."""
        scopes = self._scopes
        running = _current_autograd_node()
        if running is not None and not scopes.in_recomputation():
            if call.forward is not None:
                known = call.forward.position
                return Position("backward", None if known is None else known.module)
            is_leaf = running._sequence_nr() == _NO_SEQUENCE_NUMBER
            return Position("backward", module_holding(self._leaf_name(running)) if is_leaf else None)
        if scopes.modules:
            scope, is_recomputed = scopes.modules[-1]
            return Position("forward", (scope.removeprefix("recompute/") if is_recomputed else scope)[:-1])
        if scopes.optimizers:
            return Position("optimizer", None if call.owner is None else module_holding(call.owner))
        return Position("forward")

    def _leaf_name(self, accumulate_grad: Any) -> str:
        leaf = accumulate_grad.variable
        path = self._outside.parameter_paths.get(id(leaf))
        if path is None:
            name = self._places.name_of(leaf)
            path = name.rpartition(":")[0] if name is not None else "leaf"
        return path

    # --- whose autograd nodes are ------------------------------------------------------------------

    def enter_wrapper(self) -> None:
        """An op on a wrapper begins, which is seen as the ops that it executes on what it wraps.

        The autograd node is that of the first of them that computes: what is communicated before are its inputs.
        """
        self._in_wrapper = self._in_wrapper or _sequence_number() != self._next_sequence

    def note_autograd_nodes(self, op: Op, call: Call) -> None:
        """Remember which op the autograd nodes made since the last op belong to.

        PyTorch makes the autograd node of an op just before it runs the op, so the newest one is this op's.
        Writing through a view makes another one (CopySlices) right *after* the op, which shows up here
        together with the next op's.
        """
        following = _sequence_number()
        if following != self._next_sequence and not (self._in_wrapper and op.is_communication):
            for sequence in range(self._next_sequence, following):
                self._forward_of[sequence] = call.entry
            if self._previous_wrote and self._previous is not None:
                own = torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors)
                for sequence in range(self._next_sequence, following - (1 if own else 0)):
                    self._forward_of[sequence] = self._previous
            self._next_sequence = following
            self._in_wrapper = False
        self._previous, self._previous_wrote = call.entry, bool(op.writes)
