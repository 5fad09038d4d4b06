"""The stream of one run to a debug server (F5).

Three threads meet here. The training thread puts records into a queue and goes on. A thread of gRPC takes
messages from `RunStream._messages`, which makes them from the queue as fast as the server takes them. A thread of
the stream reads replies. The sender, which all streams to a server share, starts the stream and may give it up.
What they agree on is kept by parts without threads: the course of the stream, its account, its replies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Protocol

from tensortap.records import Record, RecordBatch
from tensortap.sink.base import Counts, RunEnd, log, notices
from tensortap.sink.parcel import size_of
from tensortap.sink.reasons import NOT_SENDABLE, QUEUE_FULL, SPOOL_FULL, SPOOLED
from tensortap.sink.stream.account import Account
from tensortap.sink.stream.course import Course
from tensortap.sink.stream.link import Link
from tensortap.sink.stream.messages import Messages
from tensortap.sink.stream.outbox import Outbox
from tensortap.sink.stream.questions import LEADING, Question, Replies
from tensortap.sink.stream.spool import Spool
from tensortap.sink.wishes import Wishes
from tensortap.wire.debug_service import ACCEPTS_BATCHES, ACCEPTS_KEY, SERVER_KEY, WRITTEN_KEY
from tensortap.wire.events import StreamMetadata
from tensortap.wire.transport import grpc

__all__ = ["RunStream"]

Item = Record | RecordBatch | Question


class Owner(Protocol):
    """Who starts streams, and wants to know what becomes of them."""

    def on_answer(self, server: str | None, takes_batches: bool) -> None:
        """A stream got its first reply."""

    def on_over(self, stream: RunStream, code: Any, details: str, kept: int | None) -> None:
        """The call of a stream has ended, one way or another."""


class RunStream:
    """The stream of one run to one URL.

    Args:
        link: to the server.
        owner: of the stream.
        metadata: what is said about the run.
        gates: of the URL.
        counts: what becomes of the records.
        foreseen: the graph of the run, if it is known before.
    """

    def __init__(
        self,
        link: Link,
        owner: Owner,
        metadata: StreamMetadata,
        gates: Wishes,
        counts: Counts,
        foreseen: RunEnd | None = None,
    ) -> None:
        self._link = link
        self._owner = owner
        self._metadata = metadata
        self._gates = gates
        self._counts = counts
        self._course = Course()
        self._account = Account(link.room, counts, link.counts)
        self._replies = Replies()
        self._outbox: Outbox[Item] = Outbox(link.changed, link.room, self._account)
        self._foreseen = foreseen or RunEnd()
        self._end: RunEnd | None = None
        self._heard_of = threading.Event()  # the server has answered, or will not be waited for
        self._call: Any = None

    # --- in the training thread --------------------------------------------------------------------

    def add(self, item: Item) -> bool:
        """Queue an item; False, and counted, if it is dropped."""
        is_question = isinstance(item, Question)
        size = size_of(item.record if isinstance(item, Question) else item)
        reason = self._outbox.put(item, size, self._link.options.max_wait_secs, is_urgent=is_question)
        if reason == QUEUE_FULL:
            notices.warn(
                (QUEUE_FULL, self._link.address),
                "The debug server %s is too slow: records are dropped and counted, so that training goes on.",
                self._link.address,
            )
        return reason is None

    def ask(self, record: Record) -> Any:
        """Send a record at a breakpoint and wait for the reply; None if it does not come in time.

        A run that the server has not even begun to answer goes on at once: the breakpoint is from its better days.
        """
        if not self._heard_of.is_set():
            self.wait_for_answer()
            self._replies.is_out_of_step |= not self._heard_of.is_set()
        if self._replies.is_out_of_step:
            self.add(record)
            return None
        question = Question(record)
        if not self.add(question):
            return None
        timeout = self._link.options.breakpoint_timeout_secs
        if not question.wait(timeout):
            self._replies.is_out_of_step = True
            self._gates.without_breakpoint(record.watch_key)
            log.warning(
                "The debug server %s did not reply at the breakpoint %s within %g s; the run goes on, and does "
                "not stop there again until the server asks for it anew.",
                self._link.address,
                record.watch_key,
                timeout,
            )
        return question.reply

    def wait_for_answer(self) -> None:
        """Wait a moment for the first reply; not if the server let the last run wait in vain."""
        availability = self._link.availability
        if availability.is_worth_waiting_for:
            heard = self._heard_of.wait(self._link.options.gate_timeout_secs)
            if not heard or self._course.lost_because is not None or self._course.is_spooled:
                availability.was_silent()

    def finish(self, end: RunEnd) -> None:
        """The run is over."""
        with self._link.changed:
            if self._end is None:
                self._end = end
                self._outbox.close()

    # --- in the thread that gRPC takes messages with -----------------------------------------------

    def open(self, call: Callable[[Iterator[bytes]], Any]) -> None:
        """Begin to stream."""
        self._replies.restart()
        with self._link.changed:
            attempt = self._course.attempt(time.monotonic())
            if self._course.can_begin_again:
                self._heard_of.clear()
        self._call = call(self._messages(attempt))
        threading.Thread(target=self._read, args=(self._call,), name="tensortap-replies", daemon=True).start()

    def _messages(self, attempt: int) -> Iterator[bytes]:
        """All messages of the stream, made as the server takes them; of no more than one attempt to send it."""
        messages = Messages(self._link.graphs, self._metadata)
        if not self._link.availability.takes_batches:
            for graph in messages.leading(self._foreseen):
                self._course.brings_graph = True
                self._replies.expect(LEADING)
                yield from graph
        self._replies.expect()
        yield messages.opening()
        self._heard_of.wait()  # or given up, which the sender sees to
        with self._link.changed:
            if not self._course.begin(attempt):
                return
        if self._link.availability.takes_batches:
            messages.use_batches()
        yield from self._contents(messages)

    def _contents(self, messages: Messages) -> Iterator[bytes]:
        course = self._course
        while course.lost_because is None and (parcel := self._outbox.take()) is not None:
            for is_question, group in groupby(parcel.items, lambda item: isinstance(item, Question)):
                if is_question:
                    for question in group:
                        yield from self._asking(question, messages)
                else:
                    records: list[Any] = list(group)
                    yield from self._sending(messages.of(records, self._not_sendable))
            self._outbox.release(parcel.weight)
        if course.lost_because is not None or self._end is None:
            return
        for graph in messages.graphs(self._end):
            course.brings_graph = True
            self._replies.expect()
            yield from self._sending(graph)
        yield from self._sending(messages.ending(self._end, self._counts.as_dict()))
        with self._link.changed:
            course.complete(time.monotonic())
            self._link.changed.notify_all()

    def _asking(self, question: Any, messages: Messages) -> Iterator[bytes]:
        try:
            parts = list(messages.single(question.record))
        except ValueError as error:
            self._not_sendable(question.record, error)
            question.settle()
            return
        self._replies.expect(question)
        yield from self._sending(parts)
        if self._course.is_spooled:
            question.settle()  # nobody will reply

    def _sending(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            self._course.hand_over(time.monotonic())
            yield message
            self._course.taken(time.monotonic())

    def _not_sendable(self, record: Record, error: Exception) -> None:
        with self._link.changed:
            self._account.strike(NOT_SENDABLE, record.nbytes)
        notices.warn(
            (NOT_SENDABLE, record.dtype), "%s cannot be sent, which is counted: %s.", record.watch_key, error
        )

    # --- to the disk, in a thread of its own -------------------------------------------------------

    def divert(self) -> bool:
        """Have the stream spooled, for whoever holds the lock; False if part of it has been sent already."""
        return self._course.divert()

    def start_spooling(self, spool: Spool, on_end: Callable[[RunStream], None]) -> None:
        """Write the diverted stream to the disk; `on_end` is told when all of it is there."""
        self._heard_of.set()  # whoever waits for the server need not any more
        threading.Thread(
            target=self._spool, args=(spool, on_end), name="tensortap-spool", daemon=True
        ).start()

    def _spool(self, spool: Spool, on_end: Callable[[RunStream], None]) -> None:
        def messages() -> Iterator[bytes]:
            made = Messages(spool.graphs, self._metadata)
            made.use_batches()
            yield made.opening()
            yield from self._contents(made)

        info = self._metadata.info
        try:
            spool.write(f"{info.timestamp}-{info.index}", messages())
        except Exception as error:
            notices.warn(
                (SPOOL_FULL, self._link.address, type(error)),
                "Runs for the debug server %s cannot be spooled any more; they are counted as dropped: %s",
                self._link.address,
                error,
            )
            self.lose(SPOOL_FULL)
        else:
            with self._link.changed:
                if self._course.end():
                    self._account.lose(SPOOLED)
        on_end(self)
        self._settle()

    # --- in the thread that reads replies ----------------------------------------------------------

    def _read(self, call: Any) -> None:
        try:
            for reply in call:
                self._on_reply(call, reply)
        except grpc.RpcError:
            pass  # the status says it all
        except Exception:
            log.exception("Reading the replies of the debug server %s failed.", self._link.address)
            call.cancel()
        written = _first(call.trailing_metadata(), WRITTEN_KEY)
        kept = int(written) if written is not None and written.isdecimal() else None
        self._owner.on_over(self, call.code(), call.details() or "", kept)

    def _on_reply(self, call: Any, reply: Any) -> None:
        self._course.answer(time.monotonic())
        initial = call.initial_metadata()
        is_ours = _first(initial, ACCEPTS_KEY) == ACCEPTS_BATCHES
        # Until it has the metadata, our server cannot tell whose gates this run is to have.
        is_premature = is_ours and self._replies.is_next_leading
        if reply.debug_op_state_changes and not is_premature:
            self._gates.apply(reply.debug_op_state_changes)
        if not self._heard_of.is_set() and not self._replies.is_next_leading:
            self._owner.on_answer(_first(initial, SERVER_KEY), is_ours)
            self._heard_of.set()
        self._replies.take(reply)

    # --- called by the sender ----------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """Whether the run is over."""
        return self._end is not None

    @property
    def all_sent(self) -> bool:
        """Whether gRPC has taken the last message."""
        return self._course.all_sent

    @property
    def is_out_of_the_way(self) -> bool:
        """Whether the next run may begin, although the server has not confirmed this one."""
        return self._course.is_out_of_the_way

    @property
    def can_begin_again(self) -> bool:
        """Whether nothing but metadata has been sent yet."""
        return self._course.can_begin_again

    @property
    def is_taken_care_of(self) -> bool:
        """Whether it was given up or goes to the disk."""
        return self._course.lost_because is not None or self._course.is_spooled

    def retire(self) -> bool:
        """Stop the attempt that is under way; False if the server has answered it after all."""
        with self._link.changed:
            return self._course.retire()

    def overdue(self, now: float) -> str | None:
        """Why the stream has to be given up now, None if it need not be."""
        return self._course.overdue(
            now, self._link.connect_timeout_secs, self._link.options.stall_timeout_secs
        )

    def cancel(self) -> None:
        """Stop the call, if there is one."""
        if self._call is not None:
            self._call.cancel()

    def arrive(self, kept: int | None) -> None:
        """The server has everything, or as much of it as it says."""
        with self._link.changed:
            if not self._course.end():
                return
            self._account.arrive(kept)
        self._settle()

    def lose(self, reason: str) -> None:
        """Give the stream up; all its records are counted as dropped."""
        with self._link.changed:
            if not self._course.end(lost_because=reason):
                return
            self._account.lose(reason)
            for item in self._outbox.give_up(reason):
                if isinstance(item, Question):
                    self._replies.expect(item)
        self._settle()

    def _settle(self) -> None:
        """Let everybody go on who waits for this stream."""
        self._heard_of.set()
        self._replies.settle_all()
        with self._link.changed:
            self._link.changed.notify_all()


def _first(metadata: Any, key: str) -> str | None:
    return next((str(value) for name, value in metadata or () if name == key), None)
