"""The nouns every part of tensortap shares: frozen, and free of any framework.

run       one call of `session.run`, normally one training step; numbered from 0 in a session
step      the value of the global step at a run
node      one executed operation; its name is unique within its graph, scopes are separated by `/`
tensor    one output of a node, written `node:slot`
watch key `node:slot:DebugOp`
debug op  reduces a live tensor to a record
record    what one debug op made of one tensor at one moment of a run
batch     many records as arrays, for runs that make thousands of small ones
key       what records of one watch have in common from run to run; a batch knows it by number
device    `/job:<job>/replica:0/task:<rank>/device:CPU:0`, one spelling on all engines
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_BATCH_RANK",
    "RECORD_ROW",
    "Device",
    "Frame",
    "KeyTable",
    "Node",
    "Position",
    "Record",
    "RecordBatch",
    "RecordKey",
    "RunInfo",
    "TensorSpec",
    "device_name",
    "split_tensor_name",
    "tensor_name",
]


_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_FRAME = re.compile(r"(?P<file>.*):(?P<line>\d+) in (?P<function>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's program.

    >>> print(Frame("train.py", 12, "step"))
    train.py:12 in step
    >>> Frame.of_text("train.py:12 in step")
    Frame(file='train.py', line=12, function='step')
    """

    file: str
    line: int
    function: str

    @classmethod
    def of_text(cls, text: str) -> Frame | None:
        """From how it is written in graphs; None if it is something else."""
        match = _FRAME.fullmatch(text)
        return cls(match["file"], int(match["line"]), match["function"]) if match else None

    @property
    def is_installed(self) -> bool:
        """Whether it lies in a package that was installed, so that somebody else wrote it."""
        return _INSTALLED.search(self.file) is not None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor before its value: dtype and shape (None: varies between runs).

    >>> print(TensorSpec("float32", (None, 8)))
    float32[?, 8]
    """

    dtype: str
    shape: tuple[int | None, ...]

    def merged_with(self, other: TensorSpec) -> TensorSpec:
        """The spec that describes both: dimensions that differ become None, a new dtype wins."""
        if self == other:
            return self
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return other
        dims = tuple(a if a == b else None for a, b in zip(self.shape, other.shape, strict=True))
        return TensorSpec(self.dtype, dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


class Position(NamedTuple):
    """Where in a program something is executed: see the attributes of the same names in `Node`."""

    phase: str
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One executed operation.

    Attributes:
        name: unique within the graph, stable from run to run.
        op_type: the engine's own name for the operation, such as `aten::addmm`; or one of `Placeholder`
            (an input of the step), `Variable` (parameter, buffer, optimizer state), `Const` (a tensor
            made outside the run), `AccumulateGrad` (the gradient of a
            parameter as autograd put it in place, on this rank), `Derived`.
        inputs: tensor names, in the order of the operation's arguments.
        control_inputs: names of nodes that changed, in place, memory that an input is a view of.
        outputs: dtype and shape of every slot.
        device: full device name.
        attributes: the arguments that are not tensors, by argument name.
        stack: the user's source lines, outermost first; for gradients those of the forward node.
        forward: for a gradient node, the name of the forward node it belongs to.
        is_view: the outputs share memory with the first input, so they are not new values.
        phase: where in a step it belongs: `forward`, `backward`, `optimizer`; `input` or `parameter` for what was there
            before the step, except the state of an optimizer. Empty if nobody has told (see `tensortap.phases`).
        module: the path of the module it was executed in, or whose gradient or parameter it works on.
        writes: for every output, the place among the inputs of the one that it was written into, -1 if it has memory
            of its own; empty for an operation that writes into nothing.

    >>> node = Node("model/fc/addmm", "aten::addmm", inputs=("model/fc/bias:0", "x:0"))
    >>> node.tensor(0)
    'model/fc/addmm:0'
    """

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    control_inputs: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    device: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stack: tuple[Frame, ...] = ()
    forward: str | None = None
    is_view: bool = False
    phase: str = ""
    module: str | None = None
    writes: tuple[int, ...] = ()

    @property
    def source(self) -> Frame | None:
        """The innermost line of the user's program."""
        return self.stack[-1] if self.stack else None

    @property
    def own_source(self) -> Frame | None:
        """The innermost line that lies in no installed package; `source` if all of them do."""
        return next((each for each in reversed(self.stack) if not each.is_installed), self.source)

    def tensor(self, slot: int = 0) -> str:
        """Name of one output."""
        return tensor_name(self.name, slot)


@dataclass(frozen=True, slots=True)
class Device:
    """One device a session can place nodes on.

    >>> Device(device_name("cpu"), "CPU").name
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """

    name: str
    device_type: str
    memory_limit_bytes: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What one debug op made of one tensor.

    Attributes:
        debug_op: name of the debug op without its attributes, such as `DebugIdentity`.
        device: full device name.
        timestamp: microseconds since the epoch at which the tensor was complete.
        dtype: of the record's own value, as NumPy or ml_dtypes spell it, or `string`.
        shape: of the record's own value.
        data: the value: C-contiguous little-endian bytes, anything that supports the buffer protocol; for
            `string` a list of bytes, one per element; None for a tensor without a value.
        initialized: False for a tensor that had no value yet.

    >>> record = Record("fc/addmm", 0, "DebugNanCount", "", 1, "int64", (1,), bytes(8))
    >>> record.watch_key, record.nbytes
    ('fc/addmm:0:DebugNanCount', 8)
    """

    node_name: str
    output_slot: int
    debug_op: str
    device: str
    timestamp: int
    dtype: str
    shape: tuple[int, ...]
    data: Any
    initialized: bool = True

    @property
    def tensor_name(self) -> str:
        """The tensor this is about."""
        return tensor_name(self.node_name, self.output_slot)

    @property
    def watch_key(self) -> str:
        """Tensor and debug op."""
        return f"{self.tensor_name}:{self.debug_op}"

    @property
    def nbytes(self) -> int:
        """Size of the value."""
        if self.data is None:
            return 0
        return sum(map(len, self.data)) if self.dtype == "string" else memoryview(self.data).nbytes


class RecordKey(NamedTuple):
    """What the records of one watch on one tensor have in common, run after run; shapes may vary."""

    node_name: str
    output_slot: int
    debug_op: str
    device: str
    dtype: str


_adding = threading.Lock()


def _begin_child() -> None:
    """After a fork: a thread that stayed with the parent may have held the lock."""
    global _adding
    _adding = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


class KeyTable:
    """Numbers for keys, from 0 in the order they come. It only grows, so a number stays valid for good.

    An engine keeps one as long as its program lives: whatever else is worked out about a key, such as its
    encoding, is then worked out once. Safe to use from several threads.

    Attributes:
        devices: the devices of all keys.

    >>> table = KeyTable()
    >>> key = RecordKey("fc/addmm", 0, "DebugIdentity", "/device:CPU:0", "float32")
    >>> table.add(key), table.add(key), table[0].dtype, len(table)
    (0, 0, 'float32', 1)
    """

    def __init__(self) -> None:
        self.devices: set[str] = set()
        # As plain tuples of text and numbers, which the garbage collector need not look at.
        self._keys: list[tuple[str, int, str, str, str]] = []
        self._numbers: dict[tuple[str, int, str, str, str], int] = {}

    def add(self, key: tuple[str, int, str, str, str]) -> int:
        """The number of a key, given here and now if it is new."""
        known = self._numbers.get(key)
        if known is not None:
            return known
        with _adding:
            known = self._numbers.get(key)
            if known is None:
                known = len(self._keys)
                node_name, slot, debug_op, device, dtype = key
                plain = (node_name, slot, debug_op, device, dtype)
                self.devices.add(device)
                self._keys.append(plain)
                self._numbers[plain] = known
        return known

    def __getitem__(self, number: int) -> RecordKey:
        return RecordKey(*self._keys[number])

    def __len__(self) -> int:
        return len(self._keys)


MAX_BATCH_RANK = 8
"""More dimensions than tensors have in practice, and few enough for rows of a fixed size."""

RECORD_ROW = np.dtype(
    [
        ("key", "<u4"),
        ("rank", "<u4"),
        ("timestamp", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("dims", "<i8", (MAX_BATCH_RANK,)),
    ]
)
"""One record of a batch: 96 bytes without gaps, the same as this C struct.

    struct Row {
        uint32_t key;        // number in the batch's table
        uint32_t rank;       // of the record's own value, at most 8
        int64_t  timestamp;  // microseconds since the epoch
        int64_t  offset;     // of the value in the batch's data; a multiple of 8
        int64_t  nbytes;     // of the value
        int64_t  dims[8];    // shape of the value; those from `rank` on are ignored
    };
"""


_OPAQUE_ROW = np.dtype((np.void, RECORD_ROW.itemsize))


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """Many records at the price of a few arrays. Iterating gives them one by one.

    All of them are initialised and have a value of fixed size: what is a `string`, has no value or more than
    8 dimensions is a `Record` of its own. Nobody changes rows and data any more once the batch is made.

    Attributes:
        table: what the key numbers mean.
        rows: one `RECORD_ROW` per record, in order of time.
        data: the memory of all values, anything flat that supports the buffer protocol; it keeps that memory alive.
            Values may lie in it in any order, with gaps between them. If they lie in the order of their rows,
            large ones at multiples of 64 and without much in between, they are written in one go, gaps included.
        has_bad: whether a numeric summary among the records has a NaN or an infinity, if whoever made them knows.

    >>> table = KeyTable()
    >>> number = table.add(RecordKey("fc/addmm", 0, "DebugNanCount", "/device:CPU:0", "int64"))
    >>> rows = np.zeros(1, RECORD_ROW)
    >>> rows[0] = (number, 1, 17, 0, 8, (1, 0, 0, 0, 0, 0, 0, 0))
    >>> batch = RecordBatch(table, rows, np.array([5]))
    >>> len(batch), batch.nbytes, [(record.watch_key, bytes(record.data)[0]) for record in batch]
    (1, 8, [('fc/addmm:0:DebugNanCount', 5)])
    """

    table: KeyTable
    rows: npt.NDArray[np.void]
    data: Any
    has_bad: bool | None = None

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return int(self.rows["nbytes"].sum())

    @property
    def memory(self) -> memoryview:
        """The data as flat bytes."""
        view = memoryview(self.data)
        return view.cast("B") if view.nbytes else memoryview(b"")

    def select(self, which: Any) -> RecordBatch:
        """The records that a mask, a list of places or a slice picks, over the same data."""
        return RecordBatch(self.table, self.rows[which], self.data)

    @property
    def device(self) -> str:
        """The device of the first record, thus of all that `per_device` put together."""
        return self.table[int(self.rows["key"][0])].device

    @classmethod
    def joined(cls, batches: Sequence[RecordBatch]) -> RecordBatch:
        """One batch with the records of several that share a table, over a copy of their data."""
        if len(batches) == 1:
            return batches[0]
        # As opaque items: NumPy would otherwise copy field by field.
        rows = np.concatenate([batch.rows.view(_OPAQUE_ROW) for batch in batches]).view(RECORD_ROW)
        pieces: list[bytes | memoryview] = []
        starts, end = [], 0
        for batch in batches:
            memory = batch.memory
            padding = -len(memory) % 64
            pieces += (memory, bytes(padding))
            starts.append(end)
            end += len(memory) + padding
        rows["offset"] += np.repeat(starts, [len(batch) for batch in batches])
        return cls(batches[0].table, rows, b"".join(pieces))

    def per_device(self) -> list[RecordBatch]:
        """The records of each device, in order; normally that is the batch itself."""
        if not len(self.rows):
            return []
        if len(self.table.devices) == 1:
            return [self]
        places: dict[str, list[int]] = {}
        for place, key in enumerate(self.rows["key"].tolist()):
            places.setdefault(self.table[key].device, []).append(place)
        return [self] if len(places) == 1 else [self.select(each) for each in places.values()]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        memory = self.memory
        for number, rank, timestamp, offset, nbytes, dims in self.rows.tolist():
            node_name, slot, debug_op, device, dtype = self.table[number]
            value = memory[offset : offset + nbytes]
            yield Record(node_name, slot, debug_op, device, timestamp, dtype, tuple(dims[:rank]), value)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the engine knows of a run that its records do not show.

    Attributes:
        number: of the run among those that the engine was asked to watch; -1 if it is not known.
        came_from: of tensors that came bad from outside: number of the run, and name of the tensor, that they are from.
        gone: bad tensors whose memory the program had let go of when the run ended.
        is_preparation: nothing had been called or trained yet when the run ended.
        trains: whether models were called to be trained; None if it is not known.
        learning_rates: of the optimizers there are, by name.
        counts_steps: whether there is an optimizer, and so a step to count.
        engine: whose names the operations of the graph have, such as `torch`; empty if it is not known.
        calls: of several calls without gradients that share the run, when each began, in microseconds.

    >>> Circumstances(gone=("log:0",)).as_dict()
    {'gone': ['log:0']}
    >>> Circumstances.from_dict({"came_from": {"x:0": [0, "div:0"]}}).came_from
    {'x:0': (0, 'div:0')}
    """

    number: int = -1
    came_from: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    is_preparation: bool = False
    trains: bool | None = None
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    counts_steps: bool = True
    engine: str = ""
    calls: tuple[int, ...] = ()

    def of_run(
        self, engine: str, number: int, came_from: Mapping[str, tuple[int, str]], gone: tuple[str, ...]
    ) -> Circumstances:
        """The same with what is known at the end of the run. (`replace` takes several times as long, in every run.)"""
        return Circumstances(
            number,
            came_from,
            gone,
            self.is_preparation,
            self.trains,
            self.learning_rates,
            self.counts_steps,
            engine,
            self.calls,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without what is not known."""
        facts = {
            "came_from": {tensor: list(origin) for tensor, origin in self.came_from.items()},
            "gone": list(self.gone),
            "is_preparation": self.is_preparation,
            "learning_rates": dict(self.learning_rates),
            "engine": self.engine,
            "calls": list(self.calls),
        }
        known: dict[str, Any] = {name: value for name, value in facts.items() if value}
        if self.number >= 0:
            known["number"] = self.number
        if not self.counts_steps:
            known["counts_steps"] = False
        return known if self.trains is None else {**known, "trains": self.trains}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Circumstances:
        """From JSON; what has the wrong form raises TypeError or ValueError."""
        trains = facts.get("trains")
        return cls(
            int(facts.get("number", -1)),
            {
                str(tensor): (int(run), str(name))
                for tensor, (run, name) in facts.get("came_from", {}).items()
            },
            tuple(map(str, facts.get("gone", ()))),
            bool(facts.get("is_preparation", False)),
            None if trains is None else bool(trains),
            {str(name): float(rate) for name, rate in facts.get("learning_rates", {}).items()},
            bool(facts.get("counts_steps", True)),
            str(facts.get("engine", "")),
            tuple(map(int, facts.get("calls", ()))),
        )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, as it is described next to its records.

    Attributes:
        index: number of the run in its session, from 0.
        global_step: step at which the run was executed, -1 if unknown.
        timestamp: microseconds since the epoch at its start.
        task: rank of the process.
        fetches: printed form of what was fetched.
        feed_keys: printed form of what was fed, or `None`.
        input_names: names of the fed tensors.
        output_names: names of the fetched tensors.
        target_nodes: names of nodes that were run for their effect.

    >>> RunInfo(index=0, global_step=12, timestamp=1).task
    0
    """

    index: int
    global_step: int
    timestamp: int
    task: int = 0
    fetches: str = "None"
    feed_keys: str = "None"
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    target_nodes: tuple[str, ...] = ()


def tensor_name(node: str, slot: int) -> str:
    """The name of output `slot` of `node`."""
    return f"{node}:{slot}"


def split_tensor_name(name: str) -> tuple[str, int | None]:
    """Split `node:slot`; the slot is None when the name has none.

    >>> split_tensor_name("encoder/fc/addmm:0")
    ('encoder/fc/addmm', 0)
    >>> split_tensor_name("encoder/fc/addmm")
    ('encoder/fc/addmm', None)
    """
    node, colon, slot = name.rpartition(":")
    if colon and slot.isdecimal():
        return node, int(slot)
    return name, None


def device_name(kind: str, index: int = 0, *, rank: int = 0, job: str = "localhost") -> str:
    """The full name of a device, spelled the same on every engine.

    >>> device_name("cpu")
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    return f"/job:{job}/replica:0/task:{rank}/device:{kind.upper()}:{index}"
