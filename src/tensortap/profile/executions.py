"""A `StepStats` message as plain records: which op ran when, from which inputs, with which outputs.

Times are integers, in microseconds as TensorFlow's own timeline has them, or in nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["OP_TIMES", "DeviceExecutions", "Execution", "Output", "read_step_stats"]

OP_TIMES = ("schedule", "gpu", "all")

_LABEL = re.compile(r"(?P<node>.*) = (?P<op>.*)\((?P<inputs>.*)\)")


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that an execution made; `description` is the message that tells its dtype and shape."""

    name: str
    allocator: str
    nbytes: int
    description: Any


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a node.

    Attributes:
        device: number of its device in the message.
        name: of the node; for kernels, of the node that launched them.
        inputs: as its label names them: `node` for slot 0, `node:slot` for others.
        thread: as recorded.
    """

    device: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    start: int
    end: int
    thread: int


@dataclass(frozen=True, slots=True)
class DeviceExecutions:
    """What ran on one device, in the message's order."""

    device: str
    executions: tuple[Execution, ...]
    thread_names: Mapping[int, str]


def read_step_stats(step_stats: Any, op_time: str, in_nanos: bool) -> list[DeviceExecutions]:
    """The records of a message, which is not changed.

    Args:
        step_stats: a `StepStats` message.
        op_time: which time is an op's: `schedule`, as recorded; `gpu`, from its first kernel on; `all`, from its
            start to the end of its last kernel.
        in_nanos: read the message's nanoseconds, where it has them.
    """
    if op_time not in OP_TIMES:
        raise ValueError(f"op_time= is one of {', '.join(map(repr, OP_TIMES))}, got {op_time!r}.")
    devices = [
        DeviceExecutions(
            stats.device,
            tuple(_execution(each, number, stats.device, in_nanos) for each in stats.node_stats),
            dict(stats.thread_names),
        )
        for number, stats in enumerate(step_stats.dev_stats)
    ]
    return devices if op_time == "schedule" else _with_kernel_times(devices, op_time)


def _execution(stats: Any, device: int, device_name: str, in_nanos: bool) -> Execution:
    name, op, inputs = _identity(stats, device_name)
    if in_nanos:
        start = stats.all_start_nanos or stats.all_start_micros * 1000
        duration = stats.all_end_rel_nanos if stats.all_start_nanos else stats.all_end_rel_micros * 1000
    else:
        start, duration = stats.all_start_micros, stats.all_end_rel_micros
    return Execution(device, name, op, inputs, _outputs(stats), start, start + duration, stats.thread_id)


def _identity(stats: Any, device_name: str) -> tuple[str, str, tuple[str, ...]]:
    """Name, op and inputs, which different parts of TensorFlow write into labels of different forms."""
    name, label = stats.node_name, stats.timeline_label
    if "/stream:" in device_name or "/memcpy" in device_name:
        # A kernel: "<details> @@node:op#<more>".
        start, end = label.find("@@"), label.find("#")
        fields = (label[start + 2 : end] if 0 <= start < end - 2 else name).split(":")
        return fields[0], fields[1] if len(fields) > 1 else "unknown", ()
    if name == "RecvTensor":
        return name, name, ()
    found = _LABEL.match(label)
    if found is None:
        return name, "unknown", ()
    return name, found["op"], tuple(found["inputs"].split(", ")) if found["inputs"] else ()


def _outputs(stats: Any) -> tuple[Output, ...]:
    slots = [output.slot for output in stats.output]
    if len(set(slots)) < len(slots):  # not filled in
        slots = list(range(len(slots)))
    outputs = []
    for slot, output in zip(slots, stats.output, strict=True):
        allocation = output.tensor_description.allocation_description
        name = f"{stats.node_name}:{slot}" if slot else stats.node_name
        outputs.append(
            Output(name, allocation.allocator_name, allocation.requested_bytes, output.tensor_description)
        )
    return tuple(outputs)


def _with_kernel_times(devices: list[DeviceExecutions], op_time: str) -> list[DeviceExecutions]:
    spans: dict[str, tuple[int, int]] = {}
    for device in devices:
        if "/stream:all" in device.device:
            for kernel in device.executions:
                start, end = spans.get(kernel.name, (kernel.start, kernel.end))
                spans[kernel.name] = min(start, kernel.start), max(end, kernel.end)

    def timed(execution: Execution) -> Execution:
        if execution.name not in spans:
            return execution
        start, end = spans[execution.name]
        return replace(
            execution,
            start=start if op_time == "gpu" else execution.start,
            end=max(end, execution.end),
        )

    return [
        replace(device, executions=tuple(map(timed, device.executions)))
        if "/job" in device.device and "/stream:all" not in device.device
        else device
        for device in devices
    ]
