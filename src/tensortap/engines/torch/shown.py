"""Shows the values of a run to whoever asked for them, once there is something in them to be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tensortap.engines.torch.calls import Call
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.memory import is_freed
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.places import Content, Memory, Place, Places
from tensortap.engines.torch.schema import UNINITIALISED, Op
from tensortap.engines.torch.tensors import TENSORS
from tensortap.records import Node

__all__ = ["NOTHING_WRITTEN", "Shown"]

NOTHING_WRITTEN: Mapping[int, torch.Tensor] = {}


class Shown:
    """The values of one run.

    Args:
        plan: says who wants what.
        names: of the session, with the bad values that have outlived earlier runs.
        places: the values that have a name.
        observation: gets what is captured, and counts what fails.
    """

    def __init__(self, plan: RunPlan, names: RunNames, places: Places, observation: Observation) -> None:
        self._plan = plan
        self._taps = plan.all_taps
        self._survivors = names.survivors
        self._places = places
        self._observation = observation
        self._is_wanted = bool(plan.captures or self._taps)
        watching = plan.watching
        self._bad = watching.bad if watching is not None and watching.bad.limit else None

    def outputs(
        self,
        call: Call,
        node: Node,
        outputs: Sequence[torch.Tensor],
        places: Sequence[Place],
        written: Mapping[int, torch.Tensor],
    ) -> None:
        """Show what an op has made.

        Args:
            call: the op.
            node: its node.
            outputs: what it has made or changed.
            places: where each of them is.
            written: those that it has changed, by identity.
        """
        if not self._is_wanted:
            return
        op = call.op
        # What an op has just made has memory; a view or a changed argument may have lost it.
        fresh = not op.is_view and not written
        if self._bad is not None:
            self._bad.begin()
        for slot, tensor in enumerate(outputs):
            if self._settle(op, places[slot], node, slot, tensor, id(tensor) in written):
                self.show(call.entry.tensor(slot), node, slot, tensor, fresh)
        if self._bad is not None:
            self._look_for_bad(node, outputs, call.tensors, written)

    def source(self, name: str, node: Node, tensor: torch.Tensor) -> None:
        """Show a tensor from outside that is used for the first time."""
        self.show(name, node, 0, tensor)
        if self._bad is not None:
            self._look_for_bad(node, [tensor], (), NOTHING_WRITTEN)
            if self._bad.kinds_of(name):
                origin = self._survivors.origin_of(self._places.place_of(tensor))
                if origin is not None:
                    self._observation.came_from[name] = origin

    def arrived(self, memory: Memory, name: str, tensor: torch.Tensor) -> None:
        """An op computes with what a collective has brought."""
        memory.content, arrived = Content.THERE, memory.arriving
        if self._is_wanted and arrived is not None and arrived[0] == name:
            self.show(*arrived, tensor)

    def show(self, name: str, node: Node, slot: int, tensor: torch.Tensor, fresh: bool = False) -> None:
        """Show one tensor to everybody; `fresh` if it is certain to have memory."""
        if not fresh and is_freed(tensor):
            self._observation.without_data.add(name)
            return
        if name in self._plan.captures:
            self._observation.capture(TENSORS, name, tensor)
        for tap in self._taps:
            try:
                tap(node, slot, tensor)
            except Exception:
                self._observation.fault(f"tapping {name!r}")

    def see_off_bad(self) -> None:
        """The run is over: note which of its bad values may be used in a later one."""
        watching = self._plan.watching
        if self._bad is None or watching is None:
            return
        try:
            index = watching.publisher.info.index
            self._observation.gone += self._survivors.see_off(self._places, self._bad.kinds_of, index)
        except Exception:
            self._observation.fault("taking leave of bad values")

    def _settle(
        self, op: Op, place: Place, node: Node, slot: int, tensor: torch.Tensor, written: bool
    ) -> bool:
        """Note what an op has done to the memory of an output; whether there is something in it to be looked at."""
        memory = self._places.memory_at(place)
        if memory is None:
            return True
        if op.is_collective:
            memory.content, memory.arriving = Content.ARRIVING, (node.tensor(slot), node, slot)
        elif op.is_wait:
            memory.content = Content.THERE
        elif op.op_type in UNINITIALISED and not written:
            memory.content, memory.written_bytes = Content.GARBAGE, 0
        elif written and memory.content is Content.GARBAGE and place[0] >= 0:
            memory.written_bytes += tensor.numel() * tensor.element_size()
            if memory.written_bytes >= tensor.untyped_storage().nbytes():
                memory.content = Content.THERE
            return True
        return memory.content is Content.THERE

    def _look_for_bad(
        self,
        node: Node,
        outputs: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        written: Mapping[int, torch.Tensor],
    ) -> None:
        assert self._bad is not None
        try:
            self._bad.look(node, outputs, tensors, written)
        except Exception:
            self._observation.fault(f"keeping the values of {node.name!r}")
