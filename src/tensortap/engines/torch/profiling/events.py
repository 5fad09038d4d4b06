"""Reading what PyTorch's profiler recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from tensortap.records import device_name

__all__ = [
    "Allocation",
    "Call",
    "Calls",
    "DeviceEvent",
    "allocations_of",
    "calls_of",
    "device_events_of",
    "is_op",
]

_MEMORY = "[memory]"
_FUNCTION = 0
"""The number of the scope in which PyTorch records operators, and autograd its functions."""


class Call(NamedTuple):
    """Something that ran on the host: an operator, a function of autograd, a block the user named."""

    name: str
    start: int
    end: int
    correlation: int
    sequence: int
    scope: int


class Calls:
    """The calls of one thread in the order they began, each before the calls inside it.

    >>> calls = Calls(1, [Call("outer", 0, 9, 1, -1, 0), Call("inner", 2, 5, 2, -1, 0), Call("next", 9, 11, 3, -1, 0)])
    >>> calls.after(0), calls.after(1), list(calls.operators)
    (2, 2, [0, 1, 2])
    """

    def __init__(self, thread: int, calls: list[Call]) -> None:
        self.thread = thread
        self._calls = calls
        # Autograd's threads have calls that end elsewhere, so nesting is told by time alone.
        self._after = [0] * len(calls)
        open_calls: list[int] = []
        for position, call in enumerate(calls):
            while open_calls and calls[open_calls[-1]].end <= call.start:
                self._after[open_calls.pop()] = position
            open_calls.append(position)
        for position in open_calls:
            self._after[position] = len(calls)
        self.operators = [position for position, call in enumerate(calls) if call.scope == _FUNCTION]
        """Places of the calls in the scope that the native interceptor counts."""

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, position: int) -> Call:
        return self._calls[position]

    def after(self, position: int) -> int:
        """The place behind a call and everything inside it."""
        return self._after[position]


class DeviceEvent(NamedTuple):
    """Something that ran on an accelerator, and the call that launched it."""

    name: str
    device: str
    stream: int
    start: int
    end: int
    launched_by: int


class Allocation(NamedTuple):
    """Memory taken, or given back if `nbytes` is negative."""

    time: int
    thread: int
    device: str
    address: int
    nbytes: int
    total: int


def calls_of(events: Sequence[Any]) -> list[Calls]:
    """The calls of each thread, the thread of the first call first."""
    threads: dict[int, list[Call]] = defaultdict(list)
    for event in events:
        if event.device_type() != _HOST or event.linked_correlation_id() or not event.correlation_id():
            continue
        name = event.name()
        if name == _MEMORY:
            continue
        start = event.start_ns()
        threads[event.start_thread_id()].append(
            Call(
                name,
                start,
                start + event.duration_ns(),
                event.correlation_id(),
                event.sequence_nr(),
                event.scope(),
            )
        )
    for calls in threads.values():
        calls.sort(key=lambda call: call.correlation)  # given out as calls begin, and finer than any clock
    return [
        Calls(thread, calls) for thread, calls in sorted(threads.items(), key=lambda item: item[1][0].start)
    ]


def device_events_of(events: Sequence[Any], rank: int) -> list[DeviceEvent]:
    """What ran on accelerators."""
    found = []
    for event in events:
        if event.device_type() == _HOST or event.name() == _MEMORY or _is_note(event):
            continue
        start = event.start_ns()
        found.append(
            DeviceEvent(
                event.name(),
                _device(event.device_type().name, event.device_index(), rank),
                event.device_resource_id(),
                start,
                start + event.duration_ns(),
                event.linked_correlation_id(),
            )
        )
    return found


def _is_note(event: Any) -> bool:
    """Whether an event repeats, on the device's side, a name that the user gave to a block."""
    return bool(getattr(event, "is_user_annotation", lambda: False)())


def allocations_of(result: Any, rank: int) -> list[Allocation]:
    """All memory taken and given back, in order of time."""
    found = []
    for event in _tree(result.experimental_event_tree()):
        if event.tag == torch._C._profiler._EventType.Allocation:
            fields = event.extra_fields
            device = _device(fields.device.type, fields.device.index or 0, rank)
            found.append(
                Allocation(
                    event.start_time_ns,
                    event.start_tid,
                    device,
                    fields.ptr,
                    fields.alloc_size,
                    fields.total_allocated,
                )
            )
    found.sort(key=lambda each: each.time)
    return found


def _tree(events: list[Any]) -> Iterator[Any]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        yield event
        waiting += event.children


@cache
def _device(kind: str, index: int, rank: int) -> str:
    kind = kind.lower()
    if kind == "privateuse1":
        kind = torch._C._get_privateuse1_backend_name()
    return device_name(kind, max(index, 0), rank=rank)


_HOST = torch._C._autograd.DeviceType.CPU


@lru_cache(4096)
def is_op(name: str) -> bool:
    """Whether a call does work of its own, rather than call the operators that do."""
    namespace, _, plain = name.partition("::")
    if not plain or namespace == "autograd":
        return False
    try:
        schemas = torch._C._jit_get_schemas_for_operator(name)
        overloads = [f"{name}.{each.overload_name}" if each.overload_name else name for each in schemas]
        return not any(
            torch._C._dispatch_has_kernel_for_dispatch_key(each, "CompositeImplicitAutograd")
            for each in overloads
        )
    except RuntimeError:  # it has no schema, or was taken away since
        return True
