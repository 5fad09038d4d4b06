"""What the observer asks, and who knows the answer.

It asks once for everything new, in the middle of an op and by the names of the attributes here, with its own work
hidden from itself.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING

import torch

from tensortap.engines.torch import lines
from tensortap.engines.torch.memory import held_in, in_place_of, shows_its_ops

if TYPE_CHECKING:
    from tensortap.engines.torch.observer.decoder import Decoder
    from tensortap.engines.torch.observer.nodes import Nodes
    from tensortap.engines.torch.observer.numbers import Numbers
    from tensortap.engines.torch.observer.records import Records

__all__ = ["Answers"]


class Answers:
    """Where every question of one observer goes."""

    def come_from(self, decoder: Decoder, numbers: Numbers, nodes: Nodes, records: Records) -> None:
        """Say who answers: known only when there is an observer, which wants to know whom to ask."""
        self.new_entry = numbers.new_entry
        self.inner_scope = numbers.inner_scope
        self.gradient_scope = numbers.gradient_scope
        self.stray_scope = numbers.stray_scope
        self.leaf_scope = numbers.leaf_scope
        self.owner_scope = numbers.owner_scope
        self.recomputed_scope = numbers.recomputed_scope

        self.new_operator = nodes.new_operator
        self.begin = nodes.begin
        self.build = nodes.build
        self.build_alike = nodes.build_alike
        self.rewired = nodes.rewired
        self.arguments_vary = nodes.arguments_vary
        self.shapes_vary = nodes.shapes_vary
        self.constant = nodes.constant
        self.hidden_view = nodes.hidden_view
        self.gradient = nodes.gradient
        self.failed = nodes.failed
        self.failure_was_caught = nodes.failure_was_caught

        self.taps = records.taps
        self.tap = records.tap
        self.without_data = records.without_data
        self.wants_bad = records.wants_bad
        self.made_bad = records.made_bad
        self.take = records.take
        self.flush_later = records.flush_later

        self.unknown_module = decoder.unknown_module
        self.enter_root = decoder.enter_root
        self.find_new_state = decoder.find_new_state
        self.optimizer_left = decoder.optimizer_left
        self.limit_reached = decoder.limit_reached
        self.fault = decoder.fault

    def classify(self, code: CodeType) -> int:
        """Whose code it is."""
        return lines.kind_of(code)

    def tensor_class(self, tensor: torch.Tensor) -> tuple[bool, str | None]:
        """Of a wrapper's class: whether its ops are seen as those on what it wraps, and where it holds that."""
        return shows_its_ops(tensor), held_in(type(tensor))

    def in_place_of(self, wrapper: torch.Tensor) -> torch.Tensor:
        """What the gradient of a parameter is known by."""
        seen = in_place_of(wrapper)
        return wrapper if seen is None else seen
