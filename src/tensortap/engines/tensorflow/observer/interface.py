"""What an observer of TensorFlow graphs is to the rest of the engine.

    observer = choice.make_observer()
    watch = observer.watch([Lane.pill()], choose)     # once: what is to be seen
    ...
    armed = watch.arm()                               # for each run
    session.run(fetches, options=armed.merge_into(options))
    armed.finish()                                    # -> Seen: blocks of records
    ...
    watch.close()                                     # when nobody will arm it again

In a `MonitoredSession` of TensorFlow's own, `arm` belongs into `before_run` (its options into the `SessionRunArgs`) and
`finish` into `after_run`; a run that failed is finished by whoever notices, at the latest in the next `before_run` or
in `end`.
Functions called eagerly are watched by calling them in the block `armed.functions()`; nothing is traced again.

1. A run with other options than before has an executor of its own in TensorFlow, which is kept. It is made in the first
   armed run: the runtime has placed, partitioned and optimised the graph, and the observer asks `choose` which of the
   tensors that are left are wanted. Runs that are not armed use the executor they always had.
2. What was chosen is recorded while the run executes. Records are rows and bytes in blocks, ready to become a
   `tensortap.records.RecordBatch`.
3. Graphs are numbered from 0 in the order in which a watch meets them: the graph of a session (one per set of fetches
   and feeds, and per device), and the bodies of functions that are not inlined. Tensors are numbered too
   (`Watch.tensors`), and a record names its tensor by this number. Numbers never change their meaning.

Armed runs of one watch may overlap: each that begins while another is under way has an executor of its own.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "EXECUTION",
    "STOP",
    "Apart",
    "Armed",
    "Block",
    "Choose",
    "ExecutedGraph",
    "ExecutedNode",
    "ExecutedTensor",
    "Flag",
    "Kind",
    "Lane",
    "Observer",
    "OnStop",
    "Seen",
    "Watch",
]


class Kind(enum.IntEnum):
    """What is recorded of a tensor."""

    PILL = 0
    """Its health pill: float64[14 + rank], see `tensortap.pill`."""

    VALUE = 1
    """All of it."""


class Lane(NamedTuple):
    """One way of recording that tensors can be chosen for; a debug op with its arguments.

    Attributes:
        kind: what is recorded.
        lower_bound: of a pill: finite elements up to here count as -inf.
        upper_bound: of a pill: finite elements from here on count as +inf.
        mute_if_healthy: of a pill: it is counted, not recorded, if nothing is bad.
    """

    kind: Kind
    lower_bound: float = -math.inf
    upper_bound: float = math.inf
    mute_if_healthy: bool = False


class ExecutedNode(NamedTuple):
    """A node as it is executed.

    Attributes:
        name: in the optimised graph, which may not be what the user wrote: `_arg_x_0_0` for a fed placeholder `x`.
        op: its type, such as `MatMul` or `_FusedMatMul`.
        device: full name.
        inputs: `node:slot` for data, `^node` for control, as in a `GraphDef`, but always with the slot.
        dtypes: of its outputs, by the names of `tensortap.dtypes`; TensorFlow's own name for others (`resource`).
        written: dtypes of the variables that it writes, such as the three of `ResourceApplyAdam`. They count as
            outputs, after those it has.
    """

    name: str
    op: str
    device: str
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    written: tuple[str, ...] = ()


class ExecutedTensor(NamedTuple):
    """An output of an executed node, and what a record means that names its number.

    Attributes:
        graph: number of the graph.
        node: place of the node in it.
        slot: which output.
        unreadable: why there is no pill of it: it is a string, a resource or the like; "" if there is one.
    """

    graph: int
    node: int
    slot: int
    unreadable: str = ""


@dataclass(frozen=True)
class ExecutedGraph:
    """What one executor executes, before taps were added.

    Attributes:
        number: its place among the graphs of the watch.
        function: the function whose body it is; "" for the graph of a session run.
        device: where it runs.
        nodes: in no particular order.
        serialized: the same as a serialized `GraphDef`, without the values of large constants.
    """

    number: int
    function: str
    device: str
    nodes: tuple[ExecutedNode, ...]
    serialized: bytes = field(repr=False)

    @cached_property
    def graph_def(self) -> Any:
        """As TensorFlow's message, for attributes."""
        from tensorflow.core.framework import graph_pb2

        return graph_pb2.GraphDef.FromString(self.serialized)

    @cached_property
    def outputs(self) -> tuple[tuple[int, int], ...]:
        """Node and slot of every output, in the order in which `Choose` is asked for them."""
        return tuple(
            (place, slot)
            for place, node in enumerate(self.nodes)
            for slot in range(len(node.dtypes) + len(node.written))
        )


Choose: TypeAlias = Callable[[ExecutedGraph], npt.ArrayLike]
"""Called once for each graph, in the thread that makes its executor: a bit set of lanes (1 << number) for each output,
in the order of `ExecutedGraph.outputs`. 0 for what is not wanted. If it raises, nothing of the graph is recorded, and
`Seen.faults` counts it."""


STOP = 1 << 31
"""Beside the lanes of an output: the run stops there, and `on_stop` is called."""

OnStop: TypeAlias = Callable[[int, int, npt.NDArray[Any]], None]
"""Called where a run stops, in a thread of the runtime, with the number of the run (`Armed.number`), that of the
tensor, and its value. The run goes on when it returns, with what it has left in the array."""

EXECUTION = np.dtype(
    [
        ("lane", "<i4"),
        ("flags", "<u4"),
        ("frame", "<u8"),
        ("iteration", "<i8"),
        ("step", "<i8"),
    ]
)
"""What is known of a record besides its `RECORD_ROW`.

    lane       number of the lane; -1 for a value that was kept because a bad one was made
    flags      KEPT_INPUT or KEPT_OUTPUT for those
    frame      identifies the frame of a while loop; 0 outside of loops
    iteration  in that frame
    step       the runtime's number of the run
"""


class Flag(enum.IntFlag):
    """Why a value was kept although it is in no lane."""

    KEPT_INPUT = 1
    """An op made a bad value of good ones, and this is one of them."""

    KEPT_OUTPUT = 2
    """It is what was made then."""


class Apart(NamedTuple):
    """A value that has no place in a batch: strings, or more than eight dimensions.

    Attributes:
        tensor: its number.
        execution: an `EXECUTION`.
        timestamp: microseconds since the epoch.
        shape: of the tensor.
        data: its bytes; of strings, a list of them.
    """

    tensor: int
    execution: np.void
    timestamp: int
    shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True, eq=False)
class Block:
    """Some records of a run, in the order in which they were made.

    Attributes:
        rows: `tensortap.records.RECORD_ROW`; their `key` is the number of a tensor (`Watch.tensors`).
        executions: `EXECUTION`, one per row.
        data: memory of the values; offsets of rows lead into it. It is free again when nothing refers to it.
        has_bad: whether a pill among them tells of a bad value.
        apart: values that have no place in a batch.
    """

    rows: npt.NDArray[np.void]
    executions: npt.NDArray[np.void]
    data: Any
    has_bad: bool
    apart: tuple[Apart, ...] = ()


@dataclass(frozen=True, eq=False)
class Seen:
    """What was recorded in a run and not taken before.

    Attributes:
        blocks: the records.
        muted: by lane, how many healthy pills were not recorded.
        dropped: how many values were not recorded because blocks were not taken quickly enough (`value_limit`).
        faults: how many times observing itself failed; the run went on unharmed.
    """

    blocks: tuple[Block, ...]
    muted: tuple[int, ...]
    dropped: int = 0
    faults: int = 0


class Armed(ABC):
    """One run that is going to be watched, or is, or was.

    Attributes:
        number: tells it from others that are under way.
    """

    number: int

    @abstractmethod
    def merge_into(self, options: Any = None) -> Any:
        """Options for `session.run` (`tf.compat.v1.RunOptions`): a copy of these, with what makes it a watched run."""

    @abstractmethod
    def functions(self) -> AbstractContextManager[None]:
        """A block in which functions that this thread calls eagerly are watched; they are not traced again."""

    @abstractmethod
    def take(self) -> tuple[Block, ...]:
        """The blocks that are full; may be called at any time, by any thread, so that values of a large run need not
        all be in memory."""

    @abstractmethod
    def finish(self, run_metadata: Any = None) -> Seen:
        """The run is over, or did not happen: what it left. The second call gives nothing.

        Args:
            run_metadata: that of the run; only an observer whose `needs_metadata` is true looks into it.
        """


class Watch(ABC):
    """What is to be seen, for any number of runs.

    Attributes:
        graphs: those met so far. Grows while runs execute, never changes otherwise.
        tensors: by number; all outputs of all graphs.
    """

    graphs: Sequence[ExecutedGraph]
    tensors: Sequence[ExecutedTensor]

    @abstractmethod
    def arm(self) -> Armed:
        """Prepare for a run."""

    @abstractmethod
    def close(self) -> None:
        """Nobody will arm it again. TensorFlow keeps the executors as long as the session; they record nothing more."""


class Observer(ABC):
    """A way of seeing the tensors of executed graphs.

    Attributes:
        name: `native` or `portable`.
        sees_functions: whether functions called eagerly, and bodies of functions that are not inlined, are seen.
        needs_metadata: whether `finish` must be given the metadata of the run.
        stops: whether a run can be stopped at a tensor.
    """

    name: str
    sees_functions: bool
    needs_metadata: bool
    stops: bool

    @abstractmethod
    def watch(
        self,
        lanes: Sequence[Lane],
        choose: Choose,
        *,
        keep_bad: int = 0,
        value_limit: int = 1 << 30,
        on_full: Callable[[], None] | None = None,
        on_stop: OnStop | None = None,
        graph: Any = None,
    ) -> Watch:
        """Describe what is to be seen.

        Args:
            lanes: ways of recording, at most 31.
            choose: which tensors go into which of them.
            keep_bad: how many ops of a run that make a bad value of good ones are recorded whole, with their inputs.
                What a node has been shown making is not shown again in later runs.
            value_limit: how many bytes of values may wait to be taken; more are dropped and counted.
            on_full: called when a block is full and can be taken; by a thread of the runtime, so it should be quick.
            on_stop: called where `choose` has a run stop. The portable observer stops nowhere.
            graph: the `tf.Graph` of the sessions that will be run; the default one if it is not given.
        """
