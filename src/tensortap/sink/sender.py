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
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tensortap.sink.base import Counts, RunEnd, log, notices
from tensortap.sink.gates import Gates
from tensortap.sink.messages import GraphCache
from tensortap.sink.run_stream import CONNECTION_LOST, PROGRAM_ENDED, REFUSED, SPOOLED, UNREACHABLE, RunStream
from tensortap.sink.spool import Spool, without_batches
from tensortap.sink.stream_options import StreamOptions
from tensortap.wire.debug_service import (
    ACCEPTS_BATCHES,
    CLIENT_KEY,
    PATIENCE_KEY,
    SEND_EVENTS,
    EventReply,
    token_metadata,
)
from tensortap.wire.events import StreamMetadata
from tensortap.wire.transport import grpc

__all__ = ["Sender", "sender_of"]

MAX_STREAMS = 4
"""At once. tfdbg's servers serve ten, and a run only has to wait for its predecessor to be sent."""
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_USELESS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
_TICK_SECS = 0.1
_KNOCK_SECS = 0.5
_NOBODY_SECS = 1.0
_ANOTHER_ATTEMPT_SECS = 2.0
_SLOWEST_DELIVERY_SECS, _SLOWEST_DELIVERY_RATE = 30.0, 1e6
_ENDED = "The program ended before the run did."
TOKEN_VARIABLE = "TENSORTAP_TOKEN"
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # connections of the user's own channels are none of our business
]


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
        spooling: streams that are being written to the disk.
        delivered_runs: how many spooled runs the server has got since.
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
        self.spooling: list[RunStream] = []
        self.delivered_runs = 0
        self._is_delivering = False
        self._may_deliver = True
        self._server: str | None = None
        self._waiting: deque[RunStream] = deque()
        self._active: list[RunStream] = []
        self._calls: deque[Callable[[], Iterable[tuple[str, bytes]]]] = deque()
        self._calls_under_way = 0
        self._futures: set[Any] = set()
        self._is_answering = False
        self._waited_in_vain = False
        self._failed_attempts = 0
        self._down_until = 0.0
        self._thread: threading.Thread | None = None
        self._channel: Any = None
        self._told: dict[str, int] | None = None
        self._waited_for = 0
        self._spool: tuple[tuple[str, int], Spool] | None = None

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

    @property
    def spool(self) -> Spool | None:
        """Where runs go that the server cannot take."""
        directory, max_bytes = self.options.spool_dir, self.options.spool_max_bytes
        if directory is None:
            return None
        if self._spool is None or self._spool[0] != (directory, max_bytes):
            self._spool = ((directory, max_bytes), Spool(directory, self.address, max_bytes))
        return self._spool[1]

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
        self._abandon(stream, UNREACHABLE)
        return stream

    def _abandon(self, stream: RunStream, reason: str) -> None:
        """Spool a stream that cannot be sent, if that is wanted and nothing of it has been sent; else lose it."""
        spool = self.spool
        if spool is None or not stream.divert(spool):
            stream.lose(reason)
        else:
            self._may_deliver = True

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

    def flush_last(self, timeout: float) -> None:
        """Wait as `flush` does, at the end of a session; the end of the program does not wait for the same again."""
        runs = self.runs
        # Records may wait for a server that is slow or starts late, but not the user for one that nobody has started.
        if not self._is_answering and self._is_busy() and not _is_listening(self.address):
            timeout = min(timeout, _NOBODY_SECS)
        if not self.flush(timeout):
            self._waited_for = runs

    @property
    def was_waited_for(self) -> bool:
        """Whether the end of a session has waited for all runs there are, in vain."""
        return self._waited_for == self.runs

    def _is_busy(self) -> bool:
        return (
            bool(self._calls)
            or self._calls_under_way > 0
            or self._is_delivering
            or any(stream.end is not None for stream in self.spooling)
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
            stream.finish(RunEnd(error=_ENDED))
            self._abandon(stream, PROGRAM_ENDED)
            stream.cancel()
        with self.changed:
            for stream in self.spooling:
                stream.end = stream.end or RunEnd(error=_ENDED)
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.spooling, self.options.flush_secs)
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
        say = log.warning if self.counts.dropped or self.skipped_runs or self.delivered_runs else log.info
        say("%s.", self.outcome())

    def outcome(self) -> str:
        """What became of the records so far, in one sentence."""
        dropped = dict(self.counts.dropped)
        spooled = dropped.pop(SPOOLED, 0)
        records, runs = _plural(self.counts.written, "record"), _plural(self.runs, "run")
        sentences = [f"{runs} for the debug server {self.address}: {records} arrived"]
        if dropped:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
            sentences.append(f"{_plural(sum(dropped.values()), 'record')} dropped ({reasons})")
        if spooled:
            sentences.append(f"{_plural(spooled, 'record')} {SPOOLED}")
        if self.skipped_runs:
            sentences.append(f"{_plural(self.skipped_runs, 'run')} not watched while it was down")
        if self.delivered_runs:
            sentences.append(f"{_plural(self.delivered_runs, 'spooled run')} delivered")
        return "; ".join(sentences)

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
                    if not self._start_delivery():
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
                    stream.lose(f"{CONNECTION_LOST}: {type(error).__name__}")
                    self._leave(stream)
                    stream.cancel()
            for each, reason in late:
                self._give_up(each, reason)

    def _next_stream(self) -> RunStream | None:
        """The next run to be streamed, if it may begin now."""
        while self._waiting and not self._waiting[0].can_begin_again:
            self._waiting.popleft()  # given up while it waited
        if not self._waiting or len(self._active) >= MAX_STREAMS:
            return None
        if self._active and not self._is_answering:
            return None  # one attempt at a time
        if any(stream.end is not None and not stream.is_out_of_the_way for stream in self._active):
            return None  # runs arrive in their order
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
        if reason == UNREACHABLE and not stream.retire():
            return  # it has answered in the last moment
        if reason == UNREACHABLE:
            why = f"has not answered for {self.connect_timeout_secs:g} s"
            if not self._failed_attempts:  # only then is it said
                why += f" ({_who_is_there(self.address)})"
        else:
            why = f"has taken nothing for {self.options.stall_timeout_secs:g} s"
        self._rest(why)
        self._abandon(stream, reason)
        self._leave(stream)
        stream.cancel()  # last: how its call ends is no news any more

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
            self._active += lost  # until they are counted
            self._calls.clear()
            futures = list(self._futures)
        self.graphs.forget()
        for stream in lost:
            self._abandon(stream, UNREACHABLE)
            self._leave(stream)
        for future in futures:
            future.cancel()
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
            self.changed.notify_all()

    def _open_call(self, messages: Iterator[bytes]) -> Any:
        method = self._connected().stream_stream(SEND_EVENTS, None, EventReply.FromString)
        return method(messages, metadata=self._metadata(), wait_for_ready=True)

    def _send(self, make: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
        try:
            for method, message in make():
                call = self._connected().unary_unary(method, None, EventReply.FromString)
                future = call.future(
                    message,
                    timeout=self.connect_timeout_secs + self.options.stall_timeout_secs,
                    metadata=self._metadata(),
                    wait_for_ready=True,
                )
                with self.changed:
                    self._calls_under_way += 1
                    self._futures.add(future)
                future.add_done_callback(self._on_sent)
        finally:
            self._call_ended()

    def _call_ended(self) -> None:
        with self.changed:
            self._calls_under_way -= 1
            self.changed.notify_all()

    def _on_sent(self, future: Any) -> None:
        with self.changed:
            self._futures.discard(future)
        self._call_ended()
        if future.code() not in (grpc.StatusCode.OK, *_LOST):
            notices.warn(
                ("call", self.address, future.code()),
                "The debug server %s did not take source lines: %s %s",
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
        patience = f"{self.options.breakpoint_timeout_secs:g}"
        ours = [(CLIENT_KEY, "1"), (PATIENCE_KEY, patience)]
        return [*ours, *([token_metadata(token)] if token else [])]

    # --- delivering what was spooled, in a thread of its own ---------------------------------------

    def _start_delivery(self) -> bool:
        if not self._is_answering or self._waiting or self._is_delivering or not self._may_deliver:
            return False
        spool, self._may_deliver = self.spool, False
        if spool is None or not spool.files():
            return False
        self._is_delivering = True
        threading.Thread(target=self._deliver, args=(spool,), name="tensortap-deliver", daemon=True).start()
        return True

    def _deliver(self, spool: Spool) -> None:
        try:
            for path in spool.files():
                if self._is_answering:
                    self._deliver_file(spool, path)
        except Exception:
            log.exception("Delivering spooled runs to the debug server %s failed.", self.address)
        with self.changed:
            self._is_delivering = False
            self.changed.notify_all()

    def _deliver_file(self, spool: Spool, path: Path) -> None:
        with spool.claim(path) as messages:
            if messages is None:
                return  # another rank has it
            method = self._connected().stream_stream(SEND_EVENTS, None, EventReply.FromString)
            call = method(
                messages if self.takes_batches else without_batches(messages),
                metadata=self._metadata(),
                timeout=_SLOWEST_DELIVERY_SECS + path.stat().st_size / _SLOWEST_DELIVERY_RATE,
            )
            try:
                for _ in call:
                    pass
            except grpc.RpcError:
                if call.code() in (*_LOST, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return  # it stays for another time
                log.warning(
                    "The debug server %s refused the spooled run %s: %s", self.address, path, call.details()
                )
                path.replace(path.with_suffix(".refused"))
            else:
                path.unlink(missing_ok=True)
                self.delivered_runs += 1

    # --- what streams report -----------------------------------------------------------------------

    def on_answer(self, accepts: str | None, server: str | None) -> None:
        """A stream got its first reply."""
        with self.changed:
            self.takes_batches = accepts == ACCEPTS_BATCHES
            self._may_deliver |= not self._is_answering
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
        if self._begins_again(stream, code):
            return
        if code is grpc.StatusCode.OK and stream.all_sent:
            stream.arrive(written)
        elif stream.lost_because is None and not stream.is_spooled:
            self._explain(code, details)
            stream.lose(CONNECTION_LOST if code in _LOST else REFUSED)
        self._leave(stream)  # last: who waits for the stream to leave finds it counted

    def _begins_again(self, stream: RunStream, code: Any) -> bool:
        """Put a stream back that lost its connection before it had sent a record."""
        if code not in _LOST:
            return False
        with self.changed:
            is_ours = stream in self._active and stream.can_begin_again
            if not is_ours or stream.overdue(time.monotonic()) is not None:
                return False
            self._is_answering = False
            self._active.remove(stream)
            self._waiting.appendleft(stream)
            self.changed.notify_all()
        self.graphs.forget()
        return True

    def _explain(self, code: Any, details: str) -> None:
        """Say once why a stream failed, and draw the consequences."""
        self.graphs.forget()
        if code in _LOST:
            with self.changed:
                self._is_answering = False
            notices.warn(
                (CONNECTION_LOST, self.address),
                "The connection to the debug server %s was lost: the records of that run are counted as dropped.",
                self.address,
            )
            return
        notices.warn(
            (REFUSED, self.address, code),
            "The debug server %s refused a run, whose records are counted as dropped: %s %s",
            self.address,
            code.name,
            details,
        )
        if code in _USELESS:
            self._rest("refuses our streams")


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
    senders = list(_senders.values())
    begin = time.monotonic()
    for sender in senders:
        if not sender.was_waited_for:
            sender.flush(max(0.0, begin + sender.options.flush_secs - time.monotonic()))
    for sender in senders:
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


def _who_is_there(address: str) -> str:
    """Why nobody answers, as far as a connection tells; gRPC only says that there is none."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECS).close()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return (
        "something listens there, but it hangs, is no debug server, or only one side speaks TLS: "
        "ca_file here, --tls-cert there"
    )


def _is_listening(address: str) -> bool:
    """Whether somebody might be there; False if connections are refused."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
