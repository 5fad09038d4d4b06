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

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from tensortap.sink.base import Counts, RunEnd, log
from tensortap.sink.reasons import CONNECTION_LOST, PROGRAM_ENDED, REFUSED, UNREACHABLE
from tensortap.sink.stream import announce
from tensortap.sink.stream.calls import Calls, MakeMessages
from tensortap.sink.stream.connection import LOST_CODES, USELESS_CODES, Connection, is_listening, who_is_there
from tensortap.sink.stream.delivery import Delivery
from tensortap.sink.stream.lineup import Lineup
from tensortap.sink.stream.link import Link
from tensortap.sink.stream.outcome import Outcome
from tensortap.sink.stream.run_stream import RunStream
from tensortap.sink.stream.spool import Spool
from tensortap.sink.stream_options import StreamOptions
from tensortap.sink.wishes import Wishes
from tensortap.sink.worker import Worker
from tensortap.wire.events import StreamMetadata
from tensortap.wire.transport import grpc

__all__ = ["Sender"]

MAX_STREAMS = 4
"""At once. tfdbg's servers serve ten, and a run only has to wait for its predecessor to be sent."""
IDLE_SECS = 5.0
"""After so long without work the thread ends, and with it the last that would hold a sender which nobody uses."""
_TICK_SECS = 0.1
_NOBODY_SECS = 1.0
_ENDED = "The program ended before the run did."

unsaid: deque[Outcome] = deque(maxlen=64)
"""What became of the runs of senders that are gone, as far as nobody has been told."""


class Sender:
    """Streams the runs of this process to one debug server.

    Args:
        address: `host:port`.
        options: how.

    Attributes:
        runs: how many runs there were.
        skipped_runs: how many of the program's runs were not even watched, because the server was down.
    """

    def __init__(self, address: str, options: StreamOptions) -> None:
        self.runs = 0
        self.skipped_runs = 0
        self._link = Link(address, options)
        self._connection = Connection(address)
        self._calls = Calls(self._link, self._connection)
        self._delivery = Delivery(self._link, self._connection)
        self._lineup: Lineup[RunStream] = Lineup(MAX_STREAMS)
        self._spooling: list[RunStream] = []
        self._worker = Worker(self._work, "tensortap-stream")
        self._told: Outcome | None = None
        self._is_closed = False
        self._waited_for = 0

    # --- in the training thread --------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Of the server."""
        return self._link.address

    @property
    def options(self) -> StreamOptions:
        """How to stream."""
        return self._link.options

    @property
    def counts(self) -> Counts:
        """What became of all records so far."""
        return self._link.counts

    @property
    def pending_bytes(self) -> int:
        """Memory of records that wait or are being sent."""
        return self._link.room.used_bytes

    @property
    def is_down(self) -> bool:
        """Whether the server is left alone for now; everything would be dropped."""
        return self._link.is_down

    @property
    def spool(self) -> Spool | None:
        """Where runs go that the server cannot take."""
        return self._delivery.spool

    @property
    def delivered_runs(self) -> int:
        """How many spooled runs the server has got since."""
        return self._delivery.runs

    def open(
        self, metadata: StreamMetadata, gates: Wishes, counts: Counts, foreseen: RunEnd | None = None
    ) -> RunStream:
        """A stream for one run, begun as soon as may be."""
        stream = RunStream(self._link, self, metadata, gates, counts, foreseen)
        with self._link.changed:
            self.runs += 1
            self._is_closed = False
            if not self.is_down and self._worker.ensure():
                self._lineup.add(stream)
                self._link.changed.notify_all()
                return stream
        self._abandon(stream, UNREACHABLE)
        return stream

    def call(self, make: MakeMessages) -> None:
        """Send tracebacks or source files some time soon: pairs of a method and a message, made when it is time."""
        with self._link.changed:
            if not self.is_down and self._worker.ensure():
                self._calls.add(make)
                self._link.changed.notify_all()

    def skip_run(self) -> None:
        """Count a run that is not watched because the server is down."""
        with self._link.changed:
            self.skipped_runs += 1

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the server has all runs that are over; False if the timeout passed first."""
        with self._link.changed:
            return self._link.changed.wait_for(lambda: not self._is_busy(), timeout)

    def flush_last(self, timeout: float) -> None:
        """Wait as `flush` does, at the end of a session; the end of the program does not wait for the same again."""
        runs = self.runs
        # Records may wait for a server that is slow or starts late, but not the user for one that nobody has started.
        is_answering = self._link.availability.is_answering
        if not is_answering and self._is_busy() and not is_listening(self.address):
            timeout = min(timeout, _NOBODY_SECS)
        if not self.flush(timeout):
            self._waited_for = runs

    @property
    def was_waited_for(self) -> bool:
        """Whether the end of a session has waited for all runs there are, in vain."""
        return self._waited_for == self.runs

    def _is_busy(self) -> bool:
        return (
            self._calls.is_busy
            or self._delivery.is_under_way
            or any(stream.is_ended for stream in self._spooling)
            or self._lineup.has_ended_runs
        )

    def close(self) -> None:
        """Give up what has not been sent, and the connection; a later run begins anew."""
        with self._link.changed:
            streams = self._lineup.active + self._lineup.give_up_waiting()
            self._calls.clear()
            self._worker.dismiss()
            self._link.availability.lost()
            self._is_closed = True
            self._link.changed.notify_all()
        for stream in streams:
            stream.finish(RunEnd(error=_ENDED))
            self._abandon(stream, PROGRAM_ENDED)
            self._leave(stream)
            stream.cancel()
        for stream in list(self._spooling):
            stream.finish(RunEnd(error=_ENDED))
        with self._link.changed:
            self._link.changed.wait_for(lambda: not self._spooling, self.options.flush_secs)
        self._connection.close()

    def report(self) -> None:
        """Say in one line what became of the records, if that is not what was said last."""
        outcome = self.outcome()
        with self._link.changed:
            if outcome == self._told:
                return
            self._told = outcome
        outcome.tell()

    def final_outcome(self) -> Outcome:
        """What became of the records, for somebody who says it: what has not arrived by now is given up."""
        if self._is_busy():
            self.close()
        outcome = self.outcome()
        with self._link.changed:
            self._told = outcome
        return outcome

    def outcome(self) -> Outcome:
        """What became of the records so far."""
        counts = self.counts
        return Outcome(
            self.address,
            self.runs,
            counts.written,
            dict(counts.dropped),
            self.skipped_runs,
            self.delivered_runs,
        )

    def __del__(self) -> None:
        # In the middle of anything, perhaps of logging: what is still to be said is said when the program ends.
        with contextlib.suppress(Exception):
            outcome = self.outcome()
            if outcome.runs and outcome != self._told and not self._is_closed:
                unsaid.append(outcome)

    # --- in its own thread -------------------------------------------------------------------------

    def _work(self) -> None:
        link = self._link
        while True:
            with link.changed:
                if not self._worker.is_current:
                    return
                stream, call = self._lineup.next(link.availability.is_answering), self._calls.next()
                late = [] if stream or call else self._overdue()
                if not (stream or call or late):
                    if self._lineup.waiting or not self._delivery.start():
                        is_idle = self._lineup.is_empty and not self._is_busy()
                        has_news = link.changed.wait(IDLE_SECS if is_idle else _TICK_SECS)
                        if is_idle and not has_news:
                            self._worker.dismiss()  # whoever needs it begins another
                            return
                    continue
            try:
                if call is not None:
                    self._calls.send(call)
                if stream is not None:
                    stream.open(self._begin)
            except Exception as error:
                log.exception("Streaming to the debug server %s failed.", self.address)
                if stream is not None:
                    stream.lose(f"{CONNECTION_LOST}: {type(error).__name__}")
                    self._leave(stream)
                    stream.cancel()
            for each, reason in late:
                self._give_up(each, reason)

    def _begin(self, messages: Iterator[bytes]) -> Any:
        return self._connection.stream(messages, self.options, wait_for_ready=True)

    def _overdue(self) -> list[tuple[RunStream, str]]:
        now = time.monotonic()
        reasons = [(stream, stream.overdue(now)) for stream in self._lineup.active]
        return [(stream, reason) for stream, reason in reasons if reason is not None]

    def _give_up(self, stream: RunStream, reason: str) -> None:
        if reason == UNREACHABLE and not stream.retire():
            return  # it has answered in the last moment
        if reason == UNREACHABLE:
            why = f"has not answered for {self._link.connect_timeout_secs:g} s"
            if not self._link.availability.failures:  # only then is it said
                why += f" ({who_is_there(self.address)})"
        else:
            why = f"has taken nothing for {self.options.stall_timeout_secs:g} s"
        self._rest(why)
        self._abandon(stream, reason)
        self._leave(stream)
        stream.cancel()  # last: how its call ends is no news any more

    def _rest(self, why: str) -> None:
        """Leave the server alone for a while, and let nobody wait for it."""
        with self._link.changed:
            self._link.availability.failed(time.monotonic(), self.options)
            lost = self._lineup.give_up_waiting()
            futures = self._calls.clear()
        self._link.graphs.forget()
        for stream in lost:
            self._abandon(stream, UNREACHABLE)
            self._leave(stream)
        for future in futures:
            future.cancel()
        announce.is_down(self.address, why)

    def _abandon(self, stream: RunStream, reason: str) -> None:
        """Spool a stream that cannot be sent, if that is wanted and nothing of it has been sent; else lose it."""
        spool = self._delivery.spool
        with self._link.changed:
            is_diverted = spool is not None and stream.divert()
            if is_diverted:
                self._spooling.append(stream)
                self._delivery.expect()
        if spool is not None and is_diverted:
            stream.start_spooling(spool, self._spooled)
        else:
            stream.lose(reason)

    def _spooled(self, stream: RunStream) -> None:
        with self._link.changed:
            self._spooling.remove(stream)
            self._link.changed.notify_all()

    def _leave(self, stream: RunStream) -> None:
        with self._link.changed:
            self._lineup.leave(stream)
            self._link.changed.notify_all()

    # --- what streams report -----------------------------------------------------------------------

    def on_answer(self, server: str | None, takes_batches: bool) -> None:
        """A stream got its first reply."""
        with self._link.changed:
            if not self._link.availability.is_answering:
                self._delivery.expect()
            is_another = self._link.availability.answered(server, takes_batches)
            self._link.changed.notify_all()
        if is_another:
            self._link.graphs.forget()

    def on_over(self, stream: RunStream, code: Any, details: str, kept: int | None) -> None:
        """The call of a stream has ended, one way or another."""
        if self._begins_again(stream, code):
            return
        if code is grpc.StatusCode.OK and stream.all_sent:
            stream.arrive(kept)
        elif not stream.is_taken_care_of:
            self._explain(code, details)
            stream.lose(CONNECTION_LOST if code in LOST_CODES else REFUSED)
        self._leave(stream)  # last: who waits for the stream to leave finds it counted

    def _begins_again(self, stream: RunStream, code: Any) -> bool:
        """Put a stream back that lost its connection before it had sent a record."""
        if code not in LOST_CODES:
            return False
        with self._link.changed:
            if stream.overdue(time.monotonic()) is not None or not self._lineup.put_back(stream):
                return False
            self._link.availability.lost()
            self._link.changed.notify_all()
        self._link.graphs.forget()
        return True

    def _explain(self, code: Any, details: str) -> None:
        """Say once why a stream failed, and draw the consequences."""
        self._link.graphs.forget()
        if code in LOST_CODES:
            with self._link.changed:
                self._link.availability.lost()
            announce.lost_connection(self.address)
            return
        announce.refused_run(self.address, code, details)
        if code in USELESS_CODES:
            self._rest("refuses our streams")
