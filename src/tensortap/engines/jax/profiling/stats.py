"""What JAX's profiler recorded of a run as step statistics, with the names of our nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from tensortap.dtypes import DTYPE_NUMBERS
from tensortap.engines.jax.profiling.instructions import Instruction, instructions_of
from tensortap.ops.dtypes import itemsize_of
from tensortap.records import Node, device_name, split_tensor_name
from tensortap.seam.measured import Measured
from tensortap.seam.step_facts import OpFacts, StepFacts
from tensortap.wire.messages import StepStats

__all__ = ["measured"]

_CONTAINERS = ("while", "conditional", "call")
"""Instructions that take as long as those inside of them, which are there themselves."""

_NONE = Instruction("", ())


class _Event(NamedTuple):
    name: str
    program: str
    device: int
    thread: int
    start: int
    nanos: int


def measured(
    profile: bytes, nodes: Mapping[tuple[int, int], Node], rank: int, start: int, end: int
) -> Measured:
    """Work out the profile of a run.

    Args:
        profile: what JAX's profiler recorded, serialized.
        nodes: of the run, by program and place in it.
        rank: of the process.
        start: of the step, in nanoseconds since the epoch.
        end: of the step.
    """
    message = StepStats()
    devices: dict[str, Any] = {}
    programs = instructions_of(profile)
    facts: dict[str, OpFacts] = {}
    unnamed = 0
    threads: dict[int, str] = {}
    for event in _events(profile, threads):
        instruction = programs.get(event.program, {}).get(event.name, _NONE)
        if instruction.opcode in _CONTAINERS:
            continue
        made_of = [nodes[label] for label in instruction.labels if label in nodes]
        where = device_name("cpu", event.device, rank=rank)
        device = devices.get(where)
        if device is None:
            device = devices[where] = message.dev_stats.add(device=where)
        name = made_of[0].name if made_of else event.name
        stats = _add(device, name, event)
        device.thread_names[event.thread] = threads[event.thread]
        if made_of:
            stats.timeline_label = _label(made_of, instruction)
            _describe_outputs(stats, made_of[0])
            facts.setdefault(name, OpFacts.of(made_of[0]))
        else:
            unnamed += 1
            stats.timeline_label = f"{event.name} = {instruction.opcode or 'xla'}()"
    # Nodes without an instruction are no loss: XLA folded them, or found that another works out the same.
    return Measured(message, StepFacts(None, facts, (), start, end, rank), unnamed)


def _events(profile: bytes, threads: dict[int, str]) -> Iterator[_Event]:
    """The instructions that were executed, in the order of each thread."""
    data = jax.profiler.ProfileData.from_serialized_xspace(profile)
    planes = list(data.planes)
    epoch = next(
        (int(value) for plane in planes for name, value in plane.stats if name == "profile_start_time"), 0
    )
    number = 0
    for plane in planes:
        for line in plane.lines:
            number += 1
            for event in line.events:
                told = {name: value for name, value in event.stats if name in _TOLD}
                if "hlo_op" in told:
                    threads[number] = str(line.name)
                    yield _Event(
                        str(told["hlo_op"]),
                        f"{told.get('hlo_module')}({told.get('program_id')})",
                        int(told.get("device_ordinal", 0)),
                        number,
                        epoch + int(event.start_ns),
                        int(event.duration_ns),
                    )


_TOLD = frozenset(["hlo_op", "hlo_module", "program_id", "device_ordinal"])


def _add(device: Any, name: str, event: _Event) -> Any:
    begins = event.start // 1000
    micros = (event.start + event.nanos) // 1000 - begins
    return device.node_stats.add(
        node_name=name,
        all_start_micros=begins,
        op_end_rel_micros=micros,
        all_end_rel_micros=micros,
        all_start_nanos=event.start,
        op_end_rel_nanos=event.nanos,
        all_end_rel_nanos=event.nanos,
        scheduled_micros=begins,
        scheduled_nanos=event.start,
        thread_id=event.thread,
    )


def _label(made_of: list[Node], instruction: Instruction) -> str:
    """`name = op(inputs)`; of an instruction that was made of several operations, all of them."""
    first = made_of[0]
    inputs = ", ".join(_as_input(name) for name in first.inputs)
    others = ", ".join(node.op_type for node in made_of[1:])
    fused = f" + {others}" if others else ""
    return f"{first.name} = {first.op_type}({inputs}){fused}"


def _as_input(name: str) -> str:
    node, slot = split_tensor_name(name)
    return node if slot == 0 else name


def _describe_outputs(stats: Any, node: Node) -> None:
    for slot, spec in enumerate(node.outputs):
        description = stats.output.add(slot=slot).tensor_description
        description.dtype = DTYPE_NUMBERS.get(spec.dtype, 0)
        for size in spec.shape:
            description.shape.dim.add(size=-1 if size is None else size)
        nbytes = itemsize_of(spec.dtype) * math.prod(size or 0 for size in spec.shape)
        description.allocation_description.requested_bytes = 0 if node.is_view else nbytes
        description.allocation_description.allocator_name = "cpu"
