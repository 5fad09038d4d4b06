"""One stream of events: what a client sends about one run, from its first event to its end (F5–F19)."""

from __future__ import annotations

import contextlib
import logging
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensortap.errors import TensortapError
from tensortap.records import KeyTable, Record, RecordBatch, RunInfo
from tensortap.server.gates import GateClient, WatchKey, replacement
from tensortap.server.handler import StreamHandler
from tensortap.server.job import DEFAULT_JOB, Job
from tensortap.server.limits import checked_name
from tensortap.store.tensor_proto import fill_tensor
from tensortap.store.writer import RunWriter
from tensortap.wire.batches import BatchDecoder
from tensortap.wire.debug_service import WireError
from tensortap.wire.encoding import find_field
from tensortap.wire.events import (
    BATCH,
    GRAPH,
    METADATA,
    RUN_END,
    TENSOR,
    GraphJoiner,
    ReceivedGraph,
    RunEnding,
    StreamMetadata,
    TensorJoiner,
    kind_of,
    read_metadata,
    read_run_end,
)
from tensortap.wire.messages import DecodeError, Event, GraphDef

if TYPE_CHECKING:
    from tensortap.server.debug_server import DebugServer

__all__ = ["CannotStore", "Stream"]

log = logging.getLogger(__name__)

_TASK = re.compile(r"/task:(\d{1,9})(?:/|$)")
_TENSOR_CONTENT = (5, 1, 8, 4)
"""Event.summary > value > tensor > tensor_content."""
_LARGE_BYTES = 64 << 10
"""From here on, looking for the content in the message costs less than copying it."""
_OF_PATIENCE = 0.9
"""A client that has given up goes on sending to a server that does not listen; so the server gives up first."""
_A_DAY = 86_400_000_000
"""In microseconds: more than clocks differ. Whoever is from the future would never be too old."""
_INDEX_BYTES = 128
"""What a record takes on disk besides its value, roughly."""
_checked_tables: weakref.WeakKeyDictionary[KeyTable, int] = weakref.WeakKeyDictionary()


class CannotStore(TensortapError, RuntimeError):
    """There is no room for a run, or no right to make its directory."""


class Stream:
    """Takes the events of one stream, writes them, and says what to reply. Used by one thread.

    The run directory is made when it is known whose run it is: metadata of our own clients say so, others are
    known by the device of their first graph or tensor.

    Args:
        server: whose stream it is.
        is_active: whether the client is still there.
        patience: seconds that the client waits at a breakpoint, None if it waits for good.

    Attributes:
        written: how many records were.
    """

    def __init__(
        self, server: DebugServer, is_active: Callable[[], bool], patience: float | None = None
    ) -> None:
        self._server = server
        self._is_active = is_active
        self._patience = patience
        self.written = 0
        self._handler: StreamHandler | None = None
        self._graph_joiner = GraphJoiner(server.limits.value_bytes)
        self._tensor_joiner = TensorJoiner(server.limits.value_bytes)
        self._batches = BatchDecoder()
        self._metadata: StreamMetadata | None = None
        self._graphs: list[ReceivedGraph] = []
        self._graph_devices: dict[str, None] = {}
        self._early_graphs: list[Any] = []
        self._job: Job | None = None
        self._gates: tuple[Job, GateClient] | None = None
        self._writer: RunWriter | None = None
        self._ending = RunEnding()
        self._counts: Counter[str] = Counter()
        self._devices: set[str] = set()
        self._keys: set[tuple[str, int, str, str]] = set()
        self._pending = 0
        self._is_homeless = False
        self._closed = False
        self._is_complete = False

    # --- events ------------------------------------------------------------------------------------

    def take(self, message: bytes) -> Any | None:
        """Take one event; the reply if the client waits for one.

        Raises:
            WireError: the client sent what the protocol or a limit does not allow.
        """
        try:
            event = Event.FromString(message)
        except DecodeError as error:
            raise WireError(f"A message of {len(message)} bytes is no Event: {error}.") from error
        self._server.statistics.add(messages=1, received_bytes=len(message))
        if self._handler is None:
            self._handler = self._server.new_handler()
        kind = kind_of(event)
        reply = None
        if kind == TENSOR:
            content = find_field(message, _TENSOR_CONTENT) if len(message) > _LARGE_BYTES else None
            record = self._tensor_joiner.add(event, content)
            self._account()
            if record is not None:
                reply = self._record(record)
        elif kind == BATCH:
            batch = self._batches.decode(event)
            if batch is not None and len(batch):
                self._batch(batch)
        elif kind == GRAPH:
            graph = self._graph_joiner.add(event)
            self._account()
            if graph is not None:
                reply = self._graph(graph)
        elif kind == METADATA:
            reply = self._describe(read_metadata(event))
        elif kind == RUN_END:
            self._ending = read_run_end(event)
            self._is_complete = True
            self._refer(self._ending.graphs)
        return reply

    @property
    def is_complete(self) -> bool:
        """Whether the client has said that this was all; only ours do."""
        return self._is_complete

    def last_reply(self) -> Any | None:
        """What the client should still be told when it has sent everything."""
        if self._gates is None:
            return None
        reply = self._gates[1].reply()
        return reply if reply.debug_op_state_changes else None

    def close(self, error: str | None = None) -> None:
        """The stream is over; `error` says why if it was not its client that ended it."""
        if self._closed:
            return
        self._closed = True
        if self._pending and error is None:
            error = "The stream ended in the middle of a tensor or a graph."
        self._server.change_pending(-self._pending)
        if self._writer is None and self._metadata is not None and not self._is_homeless:
            with contextlib.suppress(CannotStore):
                self._open_run("")
        self._end_run(error or self._ending.error)
        self._call_handler("on_end", error)

    def _account(self) -> None:
        """Tell the server how many bytes wait for missing chunks."""
        waiting = self._tensor_joiner.pending_bytes + self._graph_joiner.pending_bytes
        if waiting != self._pending:
            self._server.change_pending(waiting - self._pending)
            self._pending = waiting

    # --- metadata and graphs -----------------------------------------------------------------------

    def _describe(self, metadata: StreamMetadata) -> Any:
        if self._metadata is not None:
            raise WireError("A second metadata event came on one stream; each run has a stream of its own.")
        self._job = self._join(metadata.grpc_path.strip("/") or metadata.session or DEFAULT_JOB)
        self._metadata = metadata
        self._job.latest_run = max(self._job.latest_run, metadata.info.index)
        if metadata.process or self._graph_devices:
            self._open_run(next(iter(self._graph_devices), ""))
        self._call_handler("on_metadata", metadata)
        return self._reply(self._job)

    def _graph(self, graph: ReceivedGraph) -> Any:
        message = _parsed(graph)
        self._know_device(graph.device)
        self._graph_devices[graph.device] = None
        self._graphs.append(graph)
        if self._job is not None:
            self._job.note_gated(message)
        else:
            self._early_graphs.append(message)
        if self._writer is not None:
            self._store_graphs(self._writer)
        elif sum(len(each.content) for each in self._graphs) > self._server.limits.value_bytes:
            raise WireError("The stream brings more graphs than the server takes before a run begins.")
        self._call_handler("on_graph", message, graph.device, graph.timestamp)
        # Until the metadata come a client may be of any job; those of a distributed session send none.
        return self._reply(self._job or self._server.job(DEFAULT_JOB))

    def _refer(self, graphs: dict[str, str]) -> None:
        """Give the run the graphs that its client names by their digests, because the server has them."""
        if self._writer is None or self._job is None:
            return
        store = self._job.store
        known = {device: self._server.graphs.find(digest, store) for device, digest in graphs.items()}
        found = {
            checked_name(device, "device"): digest for device, digest in known.items() if digest is not None
        }
        if found:
            try:
                self._writer.refer(found)
            except OSError as error:
                self._failed_write(error, 0)

    def _join(self, name: str) -> Job:
        """Find the job of the stream."""
        job = self._server.job(name)
        for graph in self._early_graphs:
            job.note_gated(graph)
        self._early_graphs.clear()
        return job

    def _store_graphs(self, writer: RunWriter) -> None:
        """Store the graphs received so far, or refer to those that an earlier run of the executor brought."""
        assert self._job is not None
        graphs, self._graphs = self._graphs, []
        try:
            digests = {
                graph.device: self._server.graphs.put(graph.content, self._job.store) for graph in graphs
            }
            if digests:
                self._job.remember_graphs(self._executor(), digests)
            digests = digests or self._job.graphs_of(self._executor())
            sources = self._server.programs.sources_for(self._job.store)
            if digests or sources:
                writer.refer(digests, sources)
        except OSError as error:
            self._failed_write(error, 0)

    def _executor(self) -> object:
        """What runs with the same graphs have in common."""
        if self._metadata is None:
            return tuple(self._graph_devices)
        info = self._metadata.info
        return info.task, info.input_names, info.output_names, info.target_nodes

    def _reply(self, job: Job) -> Any:
        # A graph may come before the metadata that says whose it is.
        if self._gates is None or self._gates[0] is not job:
            self._gates = job, job.gates.new_client()
        return self._gates[1].reply()

    # --- tensors -----------------------------------------------------------------------------------

    def _record(self, record: Record) -> Any | None:
        self._know(record)
        writer = self._run_for(record.device)
        if self._server.disk.has_room(record.nbytes + _INDEX_BYTES):
            try:
                writer.write(record)
                self._wrote(1, record.nbytes)
            except OSError as error:
                self._failed_write(error, 1)
        else:
            self._dropped("disk budget of the server", 1)
        assert self._job is not None
        if self._job.alerts.see(record):
            self._server.statistics.add(alerts=1)
        answer = self._call_handler("on_tensor", record)
        if answer is not None:
            answer = self._call(replacement, record, answer)
        key = WatchKey(record.node_name, record.output_slot, record.debug_op)
        if self._gates is None:
            return None
        if self._gates[1].waits_at(key):
            return self._hold(writer, key, record, answer)
        # A client of ours begins its run before it has read that a breakpoint is gone. Should it wait, this lets
        # it go on; if it does not, it takes no notice.
        is_ours = self._metadata is not None and self._metadata.process != 0
        return self._gates[1].reply() if is_ours and self._job.gates.was_breakpoint(key) else None

    def _hold(self, writer: RunWriter, key: WatchKey, record: Record, answer: Any) -> Any:
        """Keep the client waiting until somebody lets it go, at most as long as the server may."""
        assert self._job is not None
        assert self._gates is not None
        statistics = self._server.statistics
        statistics.add(hits=1)
        timeout = self._server.breakpoint_timeout
        if self._patience is not None:
            timeout = min(timeout, _OF_PATIENCE * self._patience)
        if answer is None and timeout > 0:
            released, answer = self._job.gates.hold(
                writer.path.name, writer.info.task, record, timeout, self._is_active
            )
            if not released and self._is_active():
                statistics.add(timeouts=1)
                log.warning(
                    "Nobody released the breakpoint %s of job %s within %g s; the run goes on, and no run stops "
                    "there again until somebody asks for it.",
                    record.watch_key,
                    self._job.name,
                    timeout,
                )
                # Where nobody watches, every run would wait as long again.
                self._job.set_gates([key], "open")
        reply = self._gates[1].reply()
        if answer is not None:
            fill_tensor(reply.tensor, answer, record.dtype, record.shape)
        return reply

    def _batch(self, batch: RecordBatch) -> None:
        self._check_table(batch.table)
        writer = self._run_for(batch.device)
        nbytes = batch.nbytes
        if self._server.disk.has_room(nbytes + _INDEX_BYTES * len(batch)):
            try:
                writer.write_batch(batch)
                self._wrote(len(batch), nbytes)
            except OSError:
                self._write_singly(writer, batch)
            except ValueError as error:
                raise WireError(str(error)) from error
        else:
            self._dropped("disk budget of the server", len(batch))
        assert self._job is not None
        bad = self._job.alerts.see_batch(batch)
        if bad:
            self._server.statistics.add(alerts=bad)
        self._call_handler("on_batch", batch)

    def _write_singly(self, writer: RunWriter, batch: RecordBatch) -> None:
        for record in batch:
            try:
                writer.write(record)
                self._wrote(1, record.nbytes)
            except OSError as error:
                self._failed_write(error, 1)

    def _know(self, record: Record) -> None:
        key = record.node_name, record.output_slot, record.debug_op, record.device
        if key in self._keys:
            return
        checked_name(record.node_name)
        checked_name(record.debug_op, "debug op")
        self._know_device(record.device)
        self._keys.add(key)
        if len(self._keys) > self._server.limits.keys:
            raise WireError(f"The stream names more than {self._server.limits.keys} watch keys.")

    def _know_device(self, device: str) -> None:
        if device not in self._devices:
            self._devices.add(checked_name(device, "device"))
            if len(self._devices) > self._server.limits.devices:
                raise WireError(f"The stream names more than {self._server.limits.devices} devices.")

    def _check_table(self, table: KeyTable) -> None:
        """Look at the names of a table once, whoever sends it."""
        for device in table.devices:
            self._know_device(device)
        checked = _checked_tables.get(table, 0)
        for number in range(checked, len(table)):
            key = table[number]
            checked_name(key.node_name)
            checked_name(key.debug_op, "debug op")
        _checked_tables[table] = len(table)

    # --- the run -----------------------------------------------------------------------------------

    def _run_for(self, device: str) -> RunWriter:
        if self._writer is None:
            return self._open_run(device)
        # A stream without metadata belongs to another process of a distributed session and outlives its runs.
        if (
            self._metadata is None
            and self._job is not None
            and self._writer.info.index < self._job.latest_run
        ):
            self._end_run(None)
            return self._open_run(device)
        return self._writer

    def _open_run(self, device: str) -> RunWriter:
        """Begin the run directory, now that it is known whose run it is."""
        if self._job is None:
            self._job = self._join(DEFAULT_JOB)
        now = time.time_ns() // 1000
        info = self._metadata.info if self._metadata is not None else RunInfo(-1, -1, now)
        if not 0 < info.timestamp < now + _A_DAY:
            info = replace(info, timestamp=now)
        found = _TASK.search(device)
        if found and not (self._metadata and self._metadata.process):
            info = replace(info, task=int(found[1]))
        try:
            self._writer = self._job.new_run(info)
        except OSError as error:
            self._is_homeless = True
            self._server.statistics.add(failures=1)
            problem = CannotStore(f"The server cannot make a run directory: {error.strerror}.")
            self._server.say_once(("run", error.errno), "%s Such runs are refused and counted.", problem)
            raise problem from error
        self._server.statistics.add(runs=1)
        self._store_graphs(self._writer)
        return self._writer

    def _end_run(self, error: str | None) -> None:
        writer, self._writer = self._writer, None
        if writer is None or self._job is None:
            return
        counts = {**self._ending.counts, **self._counts}
        lost = sum(number for name, number in self._counts.items() if name.startswith("dropped: "))
        counts["dropped"] = self._ending.counts.get("dropped", 0) + lost
        self._job.end_run(writer, counts, error)
        self._counts.clear()

    # --- counting ----------------------------------------------------------------------------------

    def _wrote(self, records: int, nbytes: int) -> None:
        self.written += records
        self._counts["written"] += records
        self._counts["written_bytes"] += nbytes
        self._server.statistics.add(records=records, record_bytes=nbytes)

    def _dropped(self, reason: str, records: int) -> None:
        self._counts[f"dropped: {reason}"] += records
        self._server.statistics.add(dropped=records)

    def _failed_write(self, error: OSError, records: int) -> None:
        self._dropped("write failed", records)
        self._server.say_once(error.errno, "Writing failed; what cannot be written is counted: %s", error)

    def _call_handler(self, method: str, *arguments: Any) -> Any:
        # Most servers have no handler of their own, and batches are not taken apart for nothing.
        if self._handler is None or type(self._handler) is StreamHandler:
            return None
        return self._call(getattr(self._handler, method), *arguments)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:
            self._server.statistics.add(failures=1)
            log.exception("%s failed; the stream goes on.", getattr(function, "__qualname__", function))
            return None


def _parsed(graph: ReceivedGraph) -> Any:
    try:
        message = GraphDef.FromString(graph.content)
    except DecodeError as error:
        raise WireError(f"The graph of {graph.device} is no GraphDef: {error}.") from error
    for node in message.node:
        checked_name(node.name)
    return message
