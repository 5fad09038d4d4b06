"""One sender per debug server: streams runs to it, and never lets the program feel how the server fares.

The training thread puts records into the queue of their run, bounded in bytes, and goes on. A run has a stream
of its own (F5), whose messages are made and sent by gRPC's threads; a thread here starts streams in the order
of their runs, and gives up what does not move:

    waiting ──► connecting ──► answering ──► ended well            its records are counted as written
                    │              │
                    └──────────────┴───────► given up              its records are counted as dropped

A stream ends well when the server has taken all of it and says so. A server that does not answer for
`connect_timeout_secs`, or stops taking anything for `stall_timeout_secs`, counts as down: what comes is dropped
at once, which costs nothing, until the time for another attempt has come.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc

from tensortap.records import Record, RecordBatch
from tensortap.sink.base import Counts, RunEnd, log, notices
from tensortap.sink.gates import Gates
from tensortap.sink.messages import GraphCache, Messages
from tensortap.wire.debug_service import (
    ACCEPTS_BATCHES,
    ACCEPTS_KEY,
    CLIENT_KEY,
    SEND_EVENTS,
    SERVER_KEY,
    WRITTEN_KEY,
    EventReply,
    token_metadata,
)
from tensortap.wire.events import StreamMetadata

__all__ = ["RunStream", "Sender", "StreamOptions", "sender_of"]

UNREACHABLE = "server unreachable"
STALLED = "server stopped taking records"
CONNECTION_LOST = "connection lost"
REFUSED = "refused by the server"
NOT_KEPT = "not kept by the server"
QUEUE_FULL = "queue full"
PROGRAM_ENDED = "program ended before they were sent"
NOT_SENDABLE = "no form in the protocol"

PARCEL_BYTES = 1 << 20
PARCEL_ITEMS = 256
PARCEL_SECS = 0.05
RECORD_OVERHEAD_BYTES = 1024
"""What a waiting record weighs besides its value, so that a bound in bytes also bounds their number."""
MAX_STREAMS = 4
"""At once. tfdbg's servers serve ten, and a run only has to wait for its predecessor to be sent."""
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_USELESS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How runs are streamed to a debug server. Times are in seconds.

    Attributes:
        connect_timeout_secs: how long records wait, in memory, for a server that does not answer. Training
            never waits.
        retry_secs: after that, how long the server is left alone before another attempt; doubled each time.
        max_retry_secs: the longest such pause.
        stall_timeout_secs: a server that has taken nothing for so long counts as down.
        max_queue_bytes: how much may wait in memory; what comes on top is dropped and counted.
        max_wait_secs: how long a full queue may hold up training before that. 0 never does; raise it where
            every value counts more than the pace.
        gate_timeout_secs: how long a run with gated watches waits for the server to say which of them it wants.
        breakpoint_timeout_secs: how long a run waits at a breakpoint; then it goes on, with a warning.
        flush_secs: how long the end of a session, or of the program, waits for the last records.
        token: for a server that wants one; the environment variable TENSORTAP_TOKEN by default.
        ca_file: certificates (PEM) to trust for a server that speaks TLS; plain text without it.

    >>> StreamOptions(connect_timeout_secs=2).retry_secs
    1.0
    """

    connect_timeout_secs: float = 10.0
    retry_secs: float = 1.0
    max_retry_secs: float = 30.0
    stall_timeout_secs: float = 10.0
    max_queue_bytes: int = 256 << 20
    max_wait_secs: float = 0.0
    gate_timeout_secs: float = 1.0
    breakpoint_timeout_secs: float = 60.0
    flush_secs: float = 10.0
    token: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        for name in (
            "connect_timeout_secs", "retry_secs", "max_retry_secs", "stall_timeout_secs", "max_queue_bytes"
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)!r}.")
        for name in ("max_wait_secs", "gate_timeout_secs", "breakpoint_timeout_secs", "flush_secs"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)!r}.")


class Question:
    """A record at a breakpoint, and the server's reply to it once it is there."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.reply: Any = None
        self.settled = threading.Event()


Item = Record | RecordBatch | Question


class RunStream:
    """The stream of one run to one URL.

    Args:
        sender: of the server.
        metadata: what is said about the run.
        gates: of the URL.
        counts: what becomes of the records.

    Attributes:
        lost_because: why it was given up, None as long as it was not.
        all_sent: gRPC has taken the last message.
    """

    def __init__(self, sender: Sender, metadata: StreamMetadata, gates: Gates, counts: Counts) -> None:
        self.sender = sender
        self.metadata = metadata
        self.gates = gates
        self.counts = counts
        self.lost_because: str | None = None
        self.all_sent = False
        self.end: RunEnd | None = None
        self._answered = threading.Event()
        self._items: deque[Item] = deque()
        self._waiting_bytes = 0
        self._held_bytes = 0
        self._records = 0
        self._value_bytes = 0
        self._begun = False
        self._over = False
        self._is_sending = False
        self._started = 0.0
        self._progressed = 0.0
        self._call: Any = None
        self._expected: deque[Question | None] = deque()
        self._out_of_step = False

    # --- in the training thread --------------------------------------------------------------------

    def add(self, item: Item) -> bool:
        """Queue an item; False, and counted, if it is dropped."""
        sender = self.sender
        records, nbytes, weight = _measures(item)
        with sender.changed:
            if self.lost_because is None and not sender.has_room(weight):
                self._wait_for_room(weight)
            reason = self.lost_because or (None if sender.has_room(weight) else QUEUE_FULL)
            if reason is None:
                self._records += records
                self._value_bytes += nbytes
                self._waiting_bytes += weight
                self._held_bytes += weight
                sender.pending_bytes += weight
                self._items.append(item)
                # Waking a thread costs more than the record: only for the first of a parcel, and a full one.
                if len(self._items) in (1, PARCEL_ITEMS) or self._waiting_bytes >= PARCEL_BYTES:
                    sender.changed.notify_all()
                return True
        self._drop(reason, records)
        if reason == QUEUE_FULL:
            notices.warn(
                (QUEUE_FULL, sender.address),
                "The debug server %s is too slow: records are dropped and counted, so that training goes on.",
                sender.address,
            )
        return False

    def ask(self, record: Record) -> Any:
        """Send a record at a breakpoint and wait for the reply; None if it does not come in time."""
        question = Question(record)
        if not self.add(record if self._out_of_step else question) or self._out_of_step:
            return None
        with self.sender.changed:
            self.sender.changed.notify_all()
        timeout = self.sender.options.breakpoint_timeout_secs
        if not question.settled.wait(timeout):
            # Whether a late reply is to this question or to a later one could not be told any more.
            self._out_of_step = True
            self.gates.without_breakpoint(record.watch_key)
            log.warning(
                "The debug server %s did not reply at the breakpoint %s within %g s; the run goes on, and does "
                "not stop there again until the server asks for it anew.",
                self.sender.address,
                record.watch_key,
                timeout,
            )
        return question.reply

    def wait_for_answer(self, timeout: float) -> bool:
        """Wait until the server has answered for the first time; False if it does not."""
        return self._answered.wait(timeout) and self.lost_because is None

    def finish(self, end: RunEnd) -> None:
        """The run is over."""
        with self.sender.changed:
            if self.end is None:
                self.end = end
                self.sender.changed.notify_all()

    def _wait_for_room(self, weight: int) -> None:
        deadline = time.monotonic() + self.sender.options.max_wait_secs
        while self.lost_because is None and not self.sender.has_room(weight):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.sender.changed.wait(left)

    # --- in the thread that gRPC takes messages with -----------------------------------------------

    def open(self, call: Callable[[Iterator[bytes]], Any]) -> None:
        """Begin to stream."""
        self._progressed = time.monotonic()
        self._started = self._started or self._progressed
        self._expected.clear()
        self._call = call(self._messages())
        threading.Thread(target=self._read, args=(self._call,), name="tensortap-replies", daemon=True).start()

    def _messages(self) -> Iterator[bytes]:
        """All messages of the stream, made as the server takes them."""
        messages = Messages(self.sender.graphs, self.metadata)
        self._expected.append(None)
        yield messages.opening()
        self._answered.wait()  # or given up, which the sender sees to
        if self.sender.takes_batches:
            messages.use_batches()
        while self.lost_because is None and (items := self._take()) is not None:
            for is_question, group in groupby(items, lambda item: isinstance(item, Question)):
                if is_question:
                    for question in group:
                        self._expected.append(question)
                        yield from self._sending(messages.single(question.record))
                else:
                    yield from self._sending(messages.of(list(group), self._not_sendable))
            self._release(items)
        if self.lost_because is not None or self.end is None:
            return
        for graph in messages.graphs(self.end):
            self._expected.append(None)
            yield from self._sending(graph)
        yield from self._sending(messages.ending(self.end, self.counts.as_dict()))
        with self.sender.changed:
            self.all_sent = True
            self._progressed = time.monotonic()
            self.sender.changed.notify_all()

    def _sending(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            self._progressed = time.monotonic()
            self._is_sending = True
            yield message
            self._is_sending = False
            self._progressed = time.monotonic()

    def _take(self) -> list[Any] | None:
        """What waits, once it is a parcel or has waited long enough; None when nothing more will come."""
        changed = self.sender.changed
        with changed:
            while not self._items:
                if self.end is not None or self.lost_because is not None:
                    return None
                changed.wait()
            until = time.monotonic() + PARCEL_SECS
            while not self._is_parcel() and (left := until - time.monotonic()) > 0:
                changed.wait(left)
            self._begun = True
            items, self._items = list(self._items), deque()
            self._waiting_bytes = 0
            return items

    def _is_parcel(self) -> bool:
        return (
            self.end is not None
            or self.lost_because is not None
            or self._waiting_bytes >= PARCEL_BYTES
            or len(self._items) >= PARCEL_ITEMS
            or isinstance(self._items[-1], Question)
        )

    def _release(self, items: Sequence[Any]) -> None:
        """Let go of the memory of what has been sent."""
        weight = sum(_measures(item)[2] for item in items)
        with self.sender.changed:
            if not self._over:
                self._held_bytes -= weight
                self.sender.pending_bytes -= weight
                self.sender.changed.notify_all()

    def _not_sendable(self, record: Record, error: Exception) -> None:
        with self.sender.changed:
            self._records -= 1
            self._value_bytes -= record.nbytes
        self._drop(NOT_SENDABLE, 1)
        notices.warn(
            (NOT_SENDABLE, record.dtype), "%s cannot be sent, which is counted: %s.", record.watch_key, error
        )

    # --- in the thread that reads replies ----------------------------------------------------------

    def _read(self, call: Any) -> None:
        try:
            for reply in call:
                self._on_reply(call, reply)
        except grpc.RpcError:
            pass  # the status says it all
        except Exception:
            log.exception("Reading the replies of the debug server %s failed.", self.sender.address)
            call.cancel()
        written = _first(call.trailing_metadata(), WRITTEN_KEY)
        self.sender.on_over(self, call.code(), call.details() or "", written)

    def _on_reply(self, call: Any, reply: Any) -> None:
        self._progressed = time.monotonic()
        if reply.debug_op_state_changes:
            self.gates.apply(reply.debug_op_state_changes)
        if not self._answered.is_set():
            initial = call.initial_metadata()
            self.sender.on_answer(_first(initial, ACCEPTS_KEY), _first(initial, SERVER_KEY))
            self._answered.set()
        question = self._expected.popleft() if self._expected else None
        if question is not None:
            question.reply = None if self._out_of_step else reply
            question.settled.set()

    # --- called by the sender ----------------------------------------------------------------------

    @property
    def is_answered(self) -> bool:
        """Whether the server has replied."""
        return self._answered.is_set()

    @property
    def can_begin_again(self) -> bool:
        """Whether no record has left the queue yet."""
        return not self._begun and not self._over

    def overdue(self, now: float) -> str | None:
        """Why the stream has to be given up now, None if it need not be."""
        options = self.sender.options
        if not self.is_answered:
            return UNREACHABLE if now - self._started > self.sender.connect_timeout_secs else None
        waits_for_server = self._is_sending or self.all_sent
        return STALLED if waits_for_server and now - self._progressed > options.stall_timeout_secs else None

    def cancel(self) -> None:
        """Stop the call, if there is one."""
        if self._call is not None:
            self._call.cancel()

    def arrive(self, written: str | None) -> None:
        """The server has everything, or as much of it as it says."""
        with self.sender.changed:
            if self._over:
                return
            self._over = True
            records, nbytes = self._records, self._value_bytes
        kept = min(int(written), records) if written is not None and written.isdecimal() else records
        for counts in (self.counts, self.sender.counts):
            counts.wrote(nbytes * kept // max(records, 1), kept)
        self._drop(NOT_KEPT, records - kept)
        self._settle()

    def lose(self, reason: str) -> None:
        """Give the stream up; all its records are counted as dropped."""
        with self.sender.changed:
            if self._over:
                return
            self._over = True
            self.lost_because = reason
            records = self._records
            self.sender.pending_bytes -= self._held_bytes
            self._expected.extend(item for item in self._items if isinstance(item, Question))
            self._items.clear()
        self._drop(reason, records)
        self._settle()

    def _settle(self) -> None:
        """Let everybody go on who waits for this stream."""
        self._answered.set()
        for question in list(self._expected):
            if question is not None:
                question.settled.set()
        with self.sender.changed:
            self.sender.changed.notify_all()

    def _drop(self, reason: str, records: int) -> None:
        self.counts.drop(reason, records)
        self.sender.counts.drop(reason, records)


def _measures(item: Item) -> tuple[int, int, int]:
    """Of an item: number of records, size of their values, and bytes of memory it takes."""
    if isinstance(item, RecordBatch):
        return len(item), item.nbytes, item.nbytes + item.rows.nbytes
    nbytes = (item.record if isinstance(item, Question) else item).nbytes
    return 1, nbytes, nbytes + RECORD_OVERHEAD_BYTES


def _first(metadata: Any, key: str) -> str | None:
    return next((str(value) for name, value in metadata or () if name == key), None)


class Sender:
    """Streams the runs of this process to one debug server.

    Args:
        address: `host:port`.
        options: how.

    Attributes:
        counts: what became of all records so far.
        runs: how many runs there were.
        skipped_runs: how many of the program's runs were not even watched, because the server was down.
        pending_bytes: memory of records that wait or are being sent.
        takes_batches: whether the server does.
    """

    def __init__(self, address: str, options: StreamOptions) -> None:
        self.address = address
        self.options = options
        self.changed = threading.Condition(threading.Lock())
        self.counts = Counts()
        self.runs = 0
        self.skipped_runs = 0
        self.graphs = GraphCache()
        self.pending_bytes = 0
        self.takes_batches = False
        self._server: str | None = None
        self._waiting: deque[RunStream] = deque()
        self._active: list[RunStream] = []
        self._calls: deque[Callable[[], Iterable[tuple[str, bytes]]]] = deque()
        self._calls_under_way = 0
        self._is_answering = False
        self._waited_in_vain = False
        self._failed_attempts = 0
        self._down_until = 0.0
        self._thread: threading.Thread | None = None
        self._channel: Any = None
        self._told: dict[str, int] | None = None

    # --- in the training thread --------------------------------------------------------------------

    @property
    def is_down(self) -> bool:
        """Whether the server is left alone for now; everything would be dropped."""
        return time.monotonic() < self._down_until

    @property
    def connect_timeout_secs(self) -> float:
        """How long the next attempt may take; a server that was down is not waited for that long again."""
        limit = self.options.connect_timeout_secs
        return min(limit, _ANOTHER_ATTEMPT_SECS) if self._failed_attempts else limit

    def has_room(self, weight: int) -> bool:
        """Whether the queue can take so many bytes; a larger item is taken when the queue is empty."""
        return not self.pending_bytes or self.pending_bytes + weight <= self.options.max_queue_bytes

    def open(self, metadata: StreamMetadata, gates: Gates, counts: Counts) -> RunStream:
        """A stream for one run, begun as soon as may be."""
        stream = RunStream(self, metadata, gates, counts)
        with self.changed:
            self.runs += 1
            if not self.is_down and self._ensure_thread():
                self._waiting.append(stream)
                self.changed.notify_all()
                return stream
        stream.lose(UNREACHABLE)
        return stream

    def call(self, make: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
        """Send tracebacks or source files some time soon: pairs of a method and a message, made when it is time."""
        with self.changed:
            if not self.is_down and self._ensure_thread():
                self._calls.append(make)
                self.changed.notify_all()

    def wait_for_answer(self, stream: RunStream) -> None:
        """Wait a moment for the first reply to a stream; not if the server let the last one wait in vain."""
        if not self._waited_in_vain:
            self._waited_in_vain = not stream.wait_for_answer(self.options.gate_timeout_secs)

    def skip_run(self) -> None:
        """Count a run that is not watched because the server is down."""
        with self.changed:
            self.skipped_runs += 1

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the server has all runs that are over; False if the timeout passed first."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._is_busy(), timeout)

    def _is_busy(self) -> bool:
        return (
            bool(self._calls)
            or self._calls_under_way > 0
            or any(stream.end is not None for stream in (*self._waiting, *self._active))
        )

    def close(self) -> None:
        """Give up what has not been sent, and the connection; a later run begins anew."""
        with self.changed:
            streams = [*self._waiting, *self._active]
            self._waiting.clear()
            self._calls.clear()
            channel, self._channel = self._channel, None
            self._thread = None
            self._is_answering = False
            self.changed.notify_all()
        for stream in streams:
            stream.cancel()
            stream.lose(PROGRAM_ENDED)
        if channel is not None:
            channel.close()

    def report(self) -> None:
        """Say in one line what became of the records, if that is not what was said last."""
        counts = self.counts.as_dict()
        with self.changed:
            counts["skipped runs"] = self.skipped_runs
            if counts == self._told:
                return
            self._told = counts
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.counts.dropped.items())
        sentences = [
            f"{counts['written']:,} records of {self.runs:,} runs arrived at the debug server {self.address}"
        ]
        if reasons:
            sentences.append(f"{counts['dropped']:,} were dropped ({reasons})")
        if self.skipped_runs:
            sentences.append(f"{self.skipped_runs:,} more runs were not watched while it was down")
        say = log.warning if len(sentences) > 1 else log.info
        say("%s.", "; ".join(sentences))

    def _ensure_thread(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="tensortap-stream", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is shutting down
                self._thread = None
                return False
        return True

    # --- in its own thread -------------------------------------------------------------------------

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self.changed:
                if self._thread is not me:
                    return
                stream, call = self._next_stream(), self._next_call()
                late = [] if stream or call else self._overdue()
                if not (stream or call or late):
                    self.changed.wait(_TICK_SECS if self._active or self._waiting else None)
                    continue
            try:
                if call is not None:
                    self._send(call)
                if stream is not None:
                    stream.open(self._open_call)
            except Exception as error:
                log.exception("Streaming to the debug server %s failed.", self.address)
                if stream is not None:
                    self._leave(stream)
                    stream.lose(f"{CONNECTION_LOST}: {type(error).__name__}")
            for each, reason in late:
                self._give_up(each, reason)

    def _next_stream(self) -> RunStream | None:
        """The next run to be streamed, if it may begin now."""
        if not self._waiting or len(self._active) >= MAX_STREAMS:
            return None
        if self._active and not self._is_answering:
            return None  # one attempt at a time
        if any(stream.end is not None and not stream.all_sent for stream in self._active):
            return None  # the run before is being sent; graphs and records arrive in the order of runs
        stream = self._waiting.popleft()
        self._active.append(stream)
        return stream

    def _next_call(self) -> Callable[[], Iterable[tuple[str, bytes]]] | None:
        if not self._calls:
            return None
        self._calls_under_way += 1
        return self._calls.popleft()

    def _overdue(self) -> list[tuple[RunStream, str]]:
        now = time.monotonic()
        reasons = [(stream, stream.overdue(now)) for stream in self._active]
        return [(stream, reason) for stream, reason in reasons if reason is not None]

    def _give_up(self, stream: RunStream, reason: str) -> None:
        if reason == UNREACHABLE:
            why = f"has not answered for {self.connect_timeout_secs:g} s"
        else:
            why = f"has taken nothing for {self.options.stall_timeout_secs:g} s"
        stream.cancel()
        self._leave(stream)
        stream.lose(reason)
        self._rest(why)

    def _rest(self, why: str) -> None:
        """Leave the server alone for a while, and let nobody wait for it."""
        with self.changed:
            options = self.options
            pause = min(options.retry_secs * 2.0 ** min(self._failed_attempts, 30), options.max_retry_secs)
            self._failed_attempts += 1
            self._down_until = time.monotonic() + pause
            self._is_answering = False
            lost = [*self._waiting]
            self._waiting.clear()
            self._calls.clear()
            self.changed.notify_all()
        self.graphs.forget()
        for stream in lost:
            stream.lose(UNREACHABLE)
        notices.warn(
            (UNREACHABLE, self.address),
            "The debug server %s %s. Training goes on; records are dropped and counted until it takes them "
            "again, which is tried from time to time.",
            self.address,
            why,
        )

    def _leave(self, stream: RunStream) -> None:
        with self.changed:
            if stream in self._active:
                self._active.remove(stream)

    def _open_call(self, messages: Iterator[bytes]) -> Any:
        method = self._connected().stream_stream(SEND_EVENTS, None, EventReply.FromString)
        return method(messages, metadata=self._metadata(), wait_for_ready=True)

    def _send(self, make: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
        options = self.options
        try:
            for method, message in make():
                call = self._connected().unary_unary(method, None, EventReply.FromString)
                future = call.future(
                    message,
                    timeout=options.connect_timeout_secs + options.stall_timeout_secs,
                    metadata=self._metadata(),
                    wait_for_ready=True,
                )
                with self.changed:
                    self._calls_under_way += 1
                future.add_done_callback(self._on_sent)
        finally:
            self._call_ended()

    def _call_ended(self) -> None:
        with self.changed:
            self._calls_under_way -= 1
            self.changed.notify_all()

    def _on_sent(self, future: Any) -> None:
        self._call_ended()
        if future.code() is not grpc.StatusCode.OK:
            notices.warn(
                ("call", self.address, future.code()),
                "The debug server %s did not take source lines: %s %s.",
                self.address,
                future.code().name,
                future.details(),
            )

    def _connected(self) -> Any:
        channel = self._channel
        if channel is None:
            if self.options.ca_file is None:
                channel = grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
            else:
                roots = Path(self.options.ca_file).expanduser().read_bytes()
                channel = grpc.secure_channel(
                    self.address, grpc.ssl_channel_credentials(roots), _CHANNEL_OPTIONS
                )
            self._channel = channel
        return channel

    def _metadata(self) -> list[tuple[str, str]]:
        token = self.options.token or os.environ.get(TOKEN_VARIABLE)
        return [(CLIENT_KEY, "1"), *([token_metadata(token)] if token else [])]

    # --- what streams report -----------------------------------------------------------------------

    def on_answer(self, accepts: str | None, server: str | None) -> None:
        """A stream got its first reply."""
        with self.changed:
            self.takes_batches = accepts == ACCEPTS_BATCHES
            self._is_answering = True
            self._down_until = 0.0
            self._failed_attempts = 0
            self._waited_in_vain = False
            is_another = server != self._server
            self._server = server
            self.changed.notify_all()
        if is_another:
            self.graphs.forget()

    def on_over(self, stream: RunStream, code: Any, details: str, written: str | None) -> None:
        """A stream has ended, one way or another."""
        self._leave(stream)
        if code is grpc.StatusCode.OK and stream.all_sent:
            stream.arrive(written)
            return
        if stream.lost_because is not None:
            return
        self.graphs.forget()
        if code in _LOST:
            with self.changed:
                self._is_answering = False
                if stream.can_begin_again and stream.overdue(time.monotonic()) is None:
                    self._waiting.appendleft(stream)
                    self.changed.notify_all()
                    return
            stream.lose(CONNECTION_LOST)
            notices.warn(
                (CONNECTION_LOST, self.address),
                "The connection to the debug server %s was lost: the records of that run are counted as dropped.",
                self.address,
            )
            return
        stream.lose(REFUSED)
        if code in _USELESS:
            self._rest("refuses our streams")
        notices.warn(
            (REFUSED, self.address, code),
            "The debug server %s refused a run, whose records are counted as dropped: %s %s",
            self.address,
            code.name,
            details,
        )


_TICK_SECS = 0.1
_ANOTHER_ATTEMPT_SECS = 2.0
TOKEN_VARIABLE = "TENSORTAP_TOKEN"
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # connections of the user's own channels are none of our business
]

_senders: dict[tuple[str, str | None, str | None], Sender] = {}
_lock = threading.Lock()


def sender_of(address: str, options: StreamOptions) -> Sender:
    """The sender of this process for a server; the newest options count.

    >>> sender_of("localhost:6064", StreamOptions()) is sender_of("localhost:6064", StreamOptions())
    True
    """
    with _lock:
        key = (address, options.token, options.ca_file)
        if not _senders:
            atexit.register(_end_all)
        sender = _senders.get(key)
        if sender is None:
            sender = _senders[key] = Sender(address, options)
        sender.options = options
        return sender


def _end_all() -> None:
    """The program ends: wait a little, then count what is left as dropped."""
    for sender in list(_senders.values()):
        sender.flush(sender.options.flush_secs)
        sender.close()
        sender.report()


def _begin_child() -> None:
    """After a fork: threads and connections stayed with the parent, and so did the duty to send."""
    global _lock
    _lock = threading.Lock()
    _left_to_the_parent.extend(_senders.values())
    _senders.clear()


_left_to_the_parent: list[Sender] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
