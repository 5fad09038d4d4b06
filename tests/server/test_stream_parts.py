"""The parts of a stream at the server: chunks that wait, names that are known, what a run is called."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.server.chunks import Chunks, PendingChunks
from tensortap.server.handler import GuardedHandler, StreamHandler
from tensortap.server.known_names import KnownNames
from tensortap.server.limits import Limits
from tensortap.server.received_run import run_info
from tensortap.wire.debug_service import Event, WireError
from tensortap.wire.events import StreamMetadata, graph_events
from tests.store.sample import INFO, pill


def chunk(number, total, size):
    event = Event(wall_time=1.0)
    event.graph_def = f"/device:CPU:0,1|{number}|{total}|".encode() + b"x" * size
    return event


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), max_size=6), st.integers(20, 300))
def test_what_waits_on_all_streams_is_bounded_and_nothing_is_left_behind(streams, bound):
    pending = PendingChunks(bound)
    opened = [Chunks(Limits(), pending) for _ in streams]
    for chunks, sizes in zip(opened, streams, strict=True):
        for number, size in enumerate(sizes):
            try:
                chunks.add_graph(chunk(number, len(sizes) + 1, size))
            except WireError:
                break  # its stream is refused, and closed
            assert chunks.are_incomplete
        assert 0 <= pending.nbytes <= bound
    for chunks in opened:
        chunks.close()
        chunks.close()
    assert pending.nbytes == 0


def test_a_graph_that_is_complete_waits_no_more():
    pending = PendingChunks(100)
    chunks = Chunks(Limits(), pending)
    (message,) = graph_events(b"content", "/device:CPU:0", 1)
    assert chunks.add_graph(Event.FromString(message)).content == b"content"
    assert not chunks.are_incomplete
    assert pending.nbytes == 0


def test_names_are_counted_once_and_bounded():
    names = KnownNames(Limits(devices=2, keys=3))
    for _ in range(10):
        for node in "abc":
            names.record(pill(node))
    with pytest.raises(WireError, match="more than 3 watch keys"):
        names.record(pill("d"))
    names.device("/device:CPU:1")
    with pytest.raises(WireError, match="more than 2 devices"):
        names.device("/device:CPU:2")
    with pytest.raises(WireError, match="control character"):
        names.record(pill("e\n"))


NOW = 1_700_000_000_000_000


@given(st.integers(-(2**40), 2**62), st.integers(0, 99), st.integers(0, 5))
def test_a_run_is_dated_by_its_client_unless_that_cannot_be(timestamp, task, process):
    metadata = StreamMetadata(replace(INFO, timestamp=timestamp, task=7), "", "", "", process)
    info = run_info(metadata, f"/job:worker/replica:0/task:{task}/device:CPU:0", NOW)
    assert 0 < info.timestamp < NOW + 86_400_000_000
    assert info.timestamp in (timestamp, NOW)
    assert info.task == (7 if process else task), "our own clients know their rank"


def test_a_handler_that_fails_is_counted_and_the_stream_goes_on(caplog):
    class Failing(StreamHandler):
        def on_end(self, error):
            raise RuntimeError("a mistake of the user")

    failures = []
    handler = GuardedHandler(Failing(None), lambda: failures.append(1))
    assert handler.tell("on_end", None) is None
    assert failures == [1]
    assert "on_end failed; the stream goes on" in caplog.text
