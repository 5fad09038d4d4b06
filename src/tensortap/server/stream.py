"""One stream of events: what a client sends about one run, from its first event to its end (F5–F19)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from tensortap.records import Record, RecordBatch
from tensortap.server.chunks import Chunks
from tensortap.server.gates import GateClient, WatchKey, replacement
from tensortap.server.handler import GuardedHandler
from tensortap.server.job import DEFAULT_JOB, Job
from tensortap.server.known_names import KnownNames
from tensortap.server.received_run import CannotStore, ReceivedRun
from tensortap.server.reception import Reception
from tensortap.server.stream_graphs import StreamGraphs
from tensortap.wire.batches import BatchDecoder
from tensortap.wire.debug_service import WireError
from tensortap.wire.events import (
    BATCH,
    GRAPH,
    METADATA,
    RUN_END,
    TENSOR,
    ReceivedGraph,
    RunEnding,
    StreamMetadata,
    kind_of,
    read_metadata,
    read_run_end,
)
from tensortap.wire.messages import DecodeError, Event
from tensortap.wire.tensor_proto import fill_tensor

__all__ = ["Stream"]

log = logging.getLogger(__name__)

_OF_PATIENCE = 0.9
"""A client that has given up goes on sending to a server that does not listen; so the server gives up first."""


class Stream:
    """Takes the events of one stream, writes them, and says what to reply. Used by one thread.

    The run directory is made when it is known whose run it is: metadata of our own clients say so, others are
    known by the device of their first graph or tensor.

    Args:
        reception: of the server.
        is_active: whether the client is still there.
        patience: seconds that the client waits at a breakpoint, None if it waits for good.

    Attributes:
        is_complete: the client has said that this was all; only ours do.
    """

    def __init__(
        self, reception: Reception, is_active: Callable[[], bool], patience: float | None = None
    ) -> None:
        self.is_complete = False
        self._reception = reception
        self._is_active = is_active
        self._patience = patience
        self._handler: GuardedHandler | None = None
        self._names = KnownNames(reception.limits)
        self._chunks = Chunks(reception.limits, reception.pending)
        self._batches = BatchDecoder()
        self._graphs = StreamGraphs(reception)
        self._early_graphs: list[Any] = []
        self._metadata: StreamMetadata | None = None
        self._job: Job | None = None
        self._gates: tuple[Job, GateClient] | None = None
        self._run: ReceivedRun | None = None
        self._written_before = 0
        self._ending = RunEnding()
        self._is_homeless = False
        self._closed = False

    @property
    def written(self) -> int:
        """How many records were."""
        return self._written_before + (0 if self._run is None else self._run.written)

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
        self._reception.statistics.add(messages=1, received_bytes=len(message))
        if self._handler is None:
            self._handler = self._reception.new_handler()
        kind = kind_of(event)
        reply = None
        if kind == TENSOR:
            record = self._chunks.add_tensor(event, message)
            if record is not None:
                reply = self._record(record, self._handler)
        elif kind == BATCH:
            batch = self._batches.decode(event)
            if batch is not None and len(batch):
                self._batch(batch)
        elif kind == GRAPH:
            graph = self._chunks.add_graph(event)
            if graph is not None:
                reply = self._graph(graph)
        elif kind == METADATA:
            reply = self._describe(read_metadata(event))
        elif kind == RUN_END:
            self._ending = read_run_end(event)
            self.is_complete = True
            if self._run is not None and self._job is not None:
                self._graphs.refer(self._run, self._job, self._ending.graphs)
        return reply

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
        if self._chunks.are_incomplete and error is None:
            error = "The stream ended in the middle of a tensor or a graph."
        self._chunks.close()
        if self._run is None and self._metadata is not None and not self._is_homeless:
            with contextlib.suppress(CannotStore):
                self._open_run("")
        self._end_run(error or self._ending.error)
        self._tell("on_end", error)

    def _tell(self, method: str, *arguments: Any) -> Any:
        return None if self._handler is None else self._handler.tell(method, *arguments)

    # --- metadata and graphs -----------------------------------------------------------------------

    def _describe(self, metadata: StreamMetadata) -> Any:
        if self._metadata is not None:
            raise WireError("A second metadata event came on one stream; each run has a stream of its own.")
        job = self._join(metadata.grpc_path.strip("/") or metadata.session or DEFAULT_JOB)
        self._metadata = metadata
        job.latest_run = max(job.latest_run, metadata.info.index)
        if metadata.process or self._graphs.first_device:
            self._open_run(self._graphs.first_device)
        self._tell("on_metadata", metadata)
        return self._reply(job)

    def _graph(self, graph: ReceivedGraph) -> Any:
        self._names.device(graph.device)
        message = self._graphs.add(graph)
        if self._job is not None:
            self._job.note_gated(message)
        else:
            self._early_graphs.append(message)
        if self._run is not None and self._job is not None:
            self._graphs.store(self._run, self._job, self._metadata)
        else:
            self._graphs.check_waiting()
        self._tell("on_graph", message, graph.device, graph.timestamp)
        # Until the metadata come a client may be of any job; those of a distributed session send none.
        return self._reply(self._job or self._reception.jobs.named(DEFAULT_JOB))

    def _join(self, name: str) -> Job:
        """Find the job of the stream."""
        job = self._job = self._reception.jobs.named(name)
        for graph in self._early_graphs:
            job.note_gated(graph)
        self._early_graphs.clear()
        return job

    def _reply(self, job: Job) -> Any:
        # A graph may come before the metadata that says whose it is.
        if self._gates is None or self._gates[0] is not job:
            self._gates = job, job.gates.new_client()
        return self._gates[1].reply()

    # --- tensors -----------------------------------------------------------------------------------

    def _record(self, record: Record, handler: GuardedHandler) -> Any | None:
        self._names.record(record)
        run, job = self._run_for(record.device)
        run.write(record)
        if job.alerts.see(record):
            self._reception.statistics.add(alerts=1)
        answer = self._tell("on_tensor", record)
        if answer is not None:
            answer = handler.call(replacement, record, answer)
        key = WatchKey(record.node_name, record.output_slot, record.debug_op)
        if self._gates is None:
            return None
        client = self._gates[1]
        if client.waits_at(key):
            self._reception.statistics.add(hits=1)
            if answer is None:
                answer = self._hold(run, job, key, record)
            reply = client.reply()
            if answer is not None:
                fill_tensor(reply.tensor, answer, record.dtype, record.shape)
            return reply
        # A client of ours begins its run before it has read that a breakpoint is gone. Should it wait, this lets
        # it go on; if it does not, it takes no notice.
        is_ours = self._metadata is not None and self._metadata.process != 0
        return client.reply() if is_ours and job.gates.was_breakpoint(key) else None

    def _hold(self, run: ReceivedRun, job: Job, key: WatchKey, record: Record) -> Any:
        """Keep the client waiting until somebody lets it go, at most as long as the server may; a new value."""
        timeout = self._reception.breakpoint_timeout
        if self._patience is not None:
            timeout = min(timeout, _OF_PATIENCE * self._patience)
        if timeout <= 0:
            return None
        released, answer = job.gates.hold(run.name, run.info.task, record, timeout, self._is_active)
        if not released and self._is_active():
            self._reception.statistics.add(timeouts=1)
            log.warning(
                "Nobody released the breakpoint %s of job %s within %g s; the run goes on, and no run stops "
                "there again until somebody asks for it.",
                record.watch_key,
                job.name,
                timeout,
            )
            # Where nobody watches, every run would wait as long again.
            job.set_gates([key], "open")
        return answer

    def _batch(self, batch: RecordBatch) -> None:
        self._names.table(batch.table)
        run, job = self._run_for(batch.device)
        run.write_batch(batch)
        bad = job.alerts.see_batch(batch)
        if bad:
            self._reception.statistics.add(alerts=bad)
        self._tell("on_batch", batch)

    # --- the run -----------------------------------------------------------------------------------

    def _run_for(self, device: str) -> tuple[ReceivedRun, Job]:
        """The run that a record of this device belongs to, and its job."""
        if self._run is None or self._job is None:
            return self._open_run(device)
        # A stream without metadata belongs to another process of a distributed session and outlives its runs.
        if self._metadata is None and self._run.info.index < self._job.latest_run:
            self._end_run(None)
            return self._open_run(device)
        return self._run, self._job

    def _open_run(self, device: str) -> tuple[ReceivedRun, Job]:
        """Begin the run directory, now that it is known whose run it is."""
        job = self._job or self._join(DEFAULT_JOB)
        try:
            run = ReceivedRun.begun_now(self._reception, job, self._metadata, device)
        except CannotStore:
            self._is_homeless = True
            raise
        self._run = run
        self._graphs.store(run, job, self._metadata)
        return run, job

    def _end_run(self, error: str | None) -> None:
        if self._run is not None:
            self._written_before = self.written
            run, self._run = self._run, None
            run.end(self._ending.counts, error, self._ending.circumstances)
