"""What was recorded of a run as step statistics, filled as TensorFlow fills them, with the names of our nodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tensortap.dtypes import DTYPE_NUMBERS
from tensortap.engines.torch.profiling.events import (
    Calls,
    DeviceEvent,
    allocations_of,
    calls_of,
    device_events_of,
)
from tensortap.engines.torch.profiling.join import Joined, join
from tensortap.engines.torch.profiling.memory import Usage, allocator_of, lives_of, usage_of
from tensortap.engines.torch.profiling.operations import Operation, blocks_of, operations_of
from tensortap.ops.dtypes import itemsize_of
from tensortap.records import Node, device_name, split_tensor_name
from tensortap.seam.measured import Measured
from tensortap.seam.step_facts import OpFacts, StepFacts
from tensortap.wire.messages import StepStats

__all__ = ["measured"]


def measured(
    result: Any,
    nodes: Sequence[Node],
    executions: bytes | bytearray,
    *,
    memory: bool,
    thread: str,
    rank: int,
    start: int,
    end: int,
) -> Measured:
    """Work out the profile of a run.

    Args:
        result: what PyTorch's profiler recorded.
        nodes: of the same run.
        executions: of these nodes, as in `Observation`.
        memory: whether it recorded allocations.
        thread: name of the thread that ran the step.
        rank: of the process.
        start: of the step, in nanoseconds since the epoch.
        end: of the step.
    """
    recorded = result.events()
    threads = calls_of(recorded)
    joined = join(threads, nodes, executions)
    operations = operations_of(threads, nodes, joined)
    allocations = allocations_of(result, rank) if memory else []
    host = device_name("cpu", rank=rank)
    writer = _Writer(nodes, joined.addresses, usage_of(allocations, operations))
    for place, operation in enumerate(operations):
        writer.add(place, operation, host)
    for number, calls in enumerate(threads):
        writer.name_thread(calls.thread, thread if number == 0 else f"{thread} (autograd {number})")
    events = device_events_of(recorded, rank)
    launchers = _launchers(threads, operations) if events else {}
    for event in events:
        writer.add_device_event(event, launchers.get(event.launched_by))
    facts = {each.name: OpFacts.of(nodes[each.node], each.sequence) for each in operations if each.node >= 0}
    lives = lives_of(allocations, operations, _made(operations, nodes, joined), start)
    return Measured(
        writer.message(),
        StepFacts(None, facts, lives, start, end, rank, blocks=blocks_of(threads, operations)),
        unnamed=sum(each.node < 0 for each in operations),
        unmatched=joined.unmatched,
    )


def _made(
    operations: Sequence[Operation], nodes: Sequence[Node], joined: Joined
) -> Mapping[int, list[tuple[int, str]]]:
    """For each address, which tensors were complete there when."""
    ends = {each.node: each.end for each in operations if each.node >= 0}
    made: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for (position, slot), address in joined.addresses.items():
        if position in ends:
            made[address].append((ends[position], nodes[position].tensor(slot)))
    for tensors in made.values():
        tensors.sort()
    return made


class _Writer:
    """The message in the making, devices in the order of their first operation."""

    def __init__(
        self,
        nodes: Sequence[Node],
        addresses: Mapping[tuple[int, int], int],
        usage: Mapping[tuple[int, str], Usage],
    ) -> None:
        self._message = StepStats()
        self._devices: dict[str, Any] = {}
        self._threads: set[tuple[str, int]] = set()
        self._nodes = nodes
        self._addresses = addresses
        self._numbers: dict[int, int] = {}
        self._usage: dict[int, list[tuple[str, Usage]]] = defaultdict(list)
        for (place, device), used in usage.items():
            self._usage[place].append((device, used))
        self._address_of = {
            nodes[position].tensor(slot): address for (position, slot), address in addresses.items()
        }

    def message(self) -> Any:
        return self._message

    def _device(self, name: str) -> Any:
        device = self._devices.get(name)
        if device is None:
            device = self._devices[name] = self._message.dev_stats.add(device=name)
        return device

    def name_thread(self, thread: int, name: str) -> None:
        for device, known in self._threads:
            if known == thread:
                self._devices[device].thread_names[thread] = name

    def add(self, place: int, operation: Operation, host: str) -> None:
        node = self._nodes[operation.node] if operation.node >= 0 else None
        inputs = ", ".join(map(_as_input, node.inputs)) if node is not None else ""
        device = host if node is None or not node.device else node.device
        stats = self._add(device, operation.name, operation.start, operation.end)
        stats.thread_id = operation.thread
        self._threads.add((device, operation.thread))
        stats.timeline_label = f"{operation.name} = {operation.op_type}({inputs})"
        if node is not None:
            self._describe_outputs(stats, node, operation.node)
        for where, used in self._usage.get(place, ()):
            memory = stats.memory.add(
                allocator_name=allocator_of(where),
                total_bytes=used.taken,
                peak_bytes=used.peak,
                live_bytes=used.live,
                allocator_bytes_in_use=used.in_use,
            )
            for moment, nbytes in used.changes:
                memory.allocation_records.add(alloc_micros=moment // 1000, alloc_bytes=nbytes)

    def _add(self, device: str, name: str, start: int, end: int) -> Any:
        begins = start // 1000
        return self._device(device).node_stats.add(
            node_name=name,
            all_start_micros=begins,
            op_end_rel_micros=end // 1000 - begins,
            all_end_rel_micros=end // 1000 - begins,
            all_start_nanos=start,
            op_end_rel_nanos=end - start,
            all_end_rel_nanos=end - start,
            scheduled_micros=begins,
            scheduled_nanos=start,
        )

    def _describe_outputs(self, stats: Any, node: Node, position: int) -> None:
        """Outputs that share the memory of an input take none themselves, or sums would count it twice."""
        shared = {self._address_of.get(name, -1) for name in node.inputs}
        writes = node.op_type.partition(".")[0].endswith("_")
        allocator = allocator_of(node.device)
        for slot, spec in enumerate(node.outputs):
            description = stats.output.add(slot=slot).tensor_description
            description.dtype = DTYPE_NUMBERS.get(spec.dtype, 0)
            for size in spec.shape:
                description.shape.dim.add(size=-1 if size is None else size)
            address = self._addresses.get((position, slot), 0)
            is_new = not (node.is_view or writes or (address and address in shared))
            nbytes = itemsize_of(spec.dtype) * math.prod(size or 0 for size in spec.shape)
            allocation = description.allocation_description
            allocation.requested_bytes = allocation.allocated_bytes = nbytes if is_new else 0
            allocation.allocator_name = allocator
            if address:
                allocation.ptr = address
                allocation.allocation_id = self._numbers.setdefault(address, len(self._numbers) + 1)

    def add_device_event(self, event: DeviceEvent, launcher: Operation | None) -> None:
        """A kernel or a copy, in the places where TensorFlow's readers look for them."""
        label = event.name if launcher is None else f"{event.name} @@{launcher.name}:{launcher.op_type}#"
        is_copy = event.name.startswith(("Memcpy", "Memset"))
        for place in (f"stream:{event.stream}", "stream:all", *(["memcpy"] if is_copy else [])):
            stats = self._add(f"{event.device}/{place}", event.name, event.start, event.end)
            stats.timeline_label = label


def _launchers(threads: Sequence[Calls], operations: Sequence[Operation]) -> dict[int, Operation]:
    """The operation of every call, by the number under which devices know the call."""
    found = {}
    for operation in operations:
        number, places = operation.calls
        for place in places:
            found[threads[number][place].correlation] = operation
    return found


def _as_input(name: str) -> str:
    node, slot = split_tensor_name(name)
    return node if slot == 0 else name
