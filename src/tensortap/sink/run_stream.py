"""The stream of one run to a debug server (F5).

Three threads meet here. The training thread puts records into a queue and goes on. A thread of gRPC takes
messages from `RunStream._messages`, which makes them from the queue as fast as the server takes them. A thread of
the stream reads replies. The sender, which all streams to a server share, starts the stream and may give it up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tensortap.records import Record, RecordBatch
from tensortap.sink.base import Counts, RunEnd, log, notices
from tensortap.sink.gates import Gates
from tensortap.sink.messages import Messages
from tensortap.wire.debug_service import ACCEPTS_KEY, SERVER_KEY, WRITTEN_KEY
from tensortap.wire.events import StreamMetadata
from tensortap.wire.transport import grpc

if TYPE_CHECKING:
    from tensortap.sink.sender import Sender
    from tensortap.sink.spool import Spool

__all__ = ["RunStream"]

UNREACHABLE = "server unreachable"
STALLED = "server stopped taking records"
CONNECTION_LOST = "connection lost"
REFUSED = "refused by the server"
NOT_KEPT = "not kept by the server"
QUEUE_FULL = "queue full"
PROGRAM_ENDED = "program ended before they were sent"
NOT_SENDABLE = "no form in the protocol"
SPOOLED = "spooled to be delivered later"
SPOOL_FULL = "spool failed or full"

PARCEL_BYTES = 1 << 20
PARCEL_ITEMS = 256
PARCEL_SECS = 0.05
RECORD_OVERHEAD_BYTES = 1024
"""What a waiting record weighs besides its value, so that a bound in bytes also bounds their number."""


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
        brings_graph: one of them was a graph, which later runs will not send again.
        is_spooled: it goes to the disk instead.
    """

    def __init__(self, sender: Sender, metadata: StreamMetadata, gates: Gates, counts: Counts) -> None:
        self.sender = sender
        self.metadata = metadata
        self.gates = gates
        self.counts = counts
        self.lost_because: str | None = None
        self.all_sent = False
        self.brings_graph = False
        self.is_spooled = False
        self.end: RunEnd | None = None
        self._answered = threading.Event()
        self._items: deque[Item] = deque()
        self._waiting_bytes = 0
        self._held_bytes = 0
        self._records = 0
        self._value_bytes = 0
        self._attempt = 0
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
        """Send a record at a breakpoint and wait for the reply; None if it does not come in time.

        A run that the server has not even begun to answer goes on at once: the breakpoint is from its better days.
        """
        if not self.is_answered:
            self.sender.wait_for_answer(self)
            self._out_of_step |= not self.is_answered
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
        return self._answered.wait(timeout) and self.lost_because is None and not self.is_spooled

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
        with self.sender.changed:
            self._attempt += 1
        self._call = call(self._messages(self._attempt))
        threading.Thread(target=self._read, args=(self._call,), name="tensortap-replies", daemon=True).start()

    def _messages(self, attempt: int) -> Iterator[bytes]:
        """All messages of the stream, made as the server takes them; of no more than one attempt to send it."""
        messages = Messages(self.sender.graphs, self.metadata)
        self._expected.append(None)
        yield messages.opening()
        self._answered.wait()  # or given up, which the sender sees to
        with self.sender.changed:
            if attempt != self._attempt or self._over:
                return
            self._begun = True
        if self.sender.takes_batches:
            messages.use_batches()
        yield from self._contents(messages)

    def _contents(self, messages: Messages) -> Iterator[bytes]:
        while self.lost_because is None and (items := self._take()) is not None:
            for is_question, group in groupby(items, lambda item: isinstance(item, Question)):
                if is_question:
                    for question in group:
                        yield from self._asking(question, messages)
                else:
                    yield from self._sending(messages.of(list(group), self._not_sendable))
            self._release(items)
        if self.lost_because is not None or self.end is None:
            return
        for graph in messages.graphs(self.end):
            self.brings_graph = True
            self._expected.append(None)
            yield from self._sending(graph)
        yield from self._sending(messages.ending(self.end, self.counts.as_dict()))
        with self.sender.changed:
            self.all_sent = True
            self._progressed = time.monotonic()
            self.sender.changed.notify_all()

    def _asking(self, question: Question, messages: Messages) -> Iterator[bytes]:
        try:
            parts = list(messages.single(question.record))
        except ValueError as error:
            self._not_sendable(question.record, error)
            question.settled.set()
            return
        self._expected.append(question)
        yield from self._sending(parts)
        if self.is_spooled:
            question.settled.set()  # nobody will reply

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

    # --- to the disk, in a thread of its own -------------------------------------------------------

    def divert(self, spool: Spool) -> bool:
        """Have the stream spooled; False if part of it has been sent already."""
        with self.sender.changed:
            if self._over or self._begun:
                return False
            self._attempt += 1
            self._begun = self.is_spooled = True
            self.sender.spooling.append(self)
        self._answered.set()  # whoever waits for the server need not any more
        threading.Thread(target=self._spool, args=(spool,), name="tensortap-spool", daemon=True).start()
        return True

    def _spool(self, spool: Spool) -> None:
        def messages() -> Iterator[bytes]:
            made = Messages(spool.graphs, self.metadata)
            made.use_batches()
            yield made.opening()
            yield from self._contents(made)

        info = self.metadata.info
        try:
            spool.write(f"{info.timestamp}-{info.index}", messages())
        except Exception as error:
            notices.warn(
                (SPOOL_FULL, self.sender.address, type(error)),
                "Runs for the debug server %s cannot be spooled any more; they are counted as dropped: %s",
                self.sender.address,
                error,
            )
            self.lose(SPOOL_FULL)
        else:
            with self.sender.changed:
                self._over = True
                records = self._records
            self._drop(SPOOLED, records)
        with self.sender.changed:
            self.sender.spooling.remove(self)
        self._settle()

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
    def is_out_of_the_way(self) -> bool:
        """Whether the next run may begin, although the server has not confirmed this one."""
        return self.all_sent and not self.brings_graph

    @property
    def can_begin_again(self) -> bool:
        """Whether nothing but metadata has been sent yet."""
        return not self._begun and not self._over

    def retire(self) -> bool:
        """Stop the attempt that is under way; False if the server has answered it after all."""
        with self.sender.changed:
            if self._begun or self._over:
                return False
            self._attempt += 1
            return True

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
