"""Batches through every sink: the same as their records one by one, also where not all of them fit."""

from __future__ import annotations

import errno
import os
import shutil
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.records import KeyTable
from tensortap.sink.base import RunEnd, Sink
from tensortap.sink.budget import Budget, Meter
from tensortap.sink.file import FileSink
from tensortap.sink.memory import MemorySink
from tensortap.sink.publisher import Publisher
from tensortap.sink.queue import WriterQueue
from tensortap.sink.retention import Keeper, RetainedSink, Retention
from tensortap.sink.session_files import SessionFiles
from tensortap.store import device_files
from tests.patience import patient
from tests.sink.sample import DebugOptions, Gate, info, watch_all
from tests.store.sample import GPU, batch_of, pill, record
from tests.store.test_batch import content


def summary(number, nan=0):
    return pill(f"p{number}", nan=nan, after=number)


def value(number, size):
    return record(f"v{number}", np.full(size, number, np.float32), after=number)


records = (
    st.builds(summary, st.integers(0, 5), st.sampled_from([0, 0, 0, 1]))
    | st.builds(value, st.integers(0, 5), st.sampled_from([0, 1, 200]))
    | st.builds(lambda number: record(f"g{number}", np.arange(2.0), device=GPU), st.integers(0, 5))
    | st.just(record("bad", np.array([np.inf])))
)
groups = st.lists(st.tuples(st.booleans(), st.lists(records, min_size=1, max_size=5)), max_size=4)

RETENTIONS = {
    "disk": Retention(when="inf_or_nan", last=1, hold="disk"),
    "memory": Retention(when="inf_or_nan", last=1),
    "little memory": Retention(when=lambda record: False, last=1, memory_bytes=900),
    "own filter": Retention(when=lambda record: record.output_slot == 0 and "g1" in record.node_name),
    "failing filter": Retention(when=lambda record: record.missing, on_error=True),
}


def open_sink(kind, root, heard):
    files = SessionFiles(root)
    if kind == "listener":
        return MemorySink(info(), [heard.append])
    if kind == "budget":
        return FileSink(root / "run_1_0", info(), files, meter=Meter(Budget(bytes_per_run=1000)))
    if kind in RETENTIONS:
        keeper = Keeper(RETENTIONS[kind])
        return RetainedSink(keeper, lambda: FileSink(root / "run_1_0", info(), files))
    return FileSink(root / "run_1_0", info(), files)


def outcome(root, kind, listed, *, batches, error):
    """What arrives when groups of records are written, and how it was counted."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    heard, table = [], KeyTable()
    sink = open_sink(kind, root, heard)
    assert isinstance(sink, Sink)
    for in_one, group in listed:
        if batches and in_one:
            sink.write_batch(batch_of(group, table))
        else:
            for each in group:
                sink.write(each)
    sink.finish(RunEnd(error=error))
    assert sink.flush(patient(10))
    told = [(each.watch_key, each.shape, bytes(each.data)) for each in heard]
    stored = content(root) if (root / "run_1_0").exists() else None
    return told, stored, sink.counts.as_dict()


@pytest.mark.parametrize("kind", ["file", "listener", "budget", *RETENTIONS])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(listed=groups, error=st.none() | st.just("broken"))
def test_a_batch_and_its_records_one_by_one_come_to_the_same(tmp_path, kind, listed, error):
    one_by_one = outcome(tmp_path / "single", kind, listed, batches=False, error=error)
    assert outcome(tmp_path / "batches", kind, listed, batches=True, error=error) == one_by_one


def test_what_the_budget_has_room_for_is_taken_of_a_batch(tmp_path, caplog):
    sink = FileSink(tmp_path / "run_1_0", info(), meter=Meter(Budget(bytes_per_run=1000)))
    sink.write_batch(batch_of([value(0, 100), value(1, 100), value(2, 50), value(3, 100), value(4, 40)]))
    sink.write_batch(batch_of([value(5, 1), value(6, 0)]))
    sink.finish(RunEnd())
    sink.flush(patient(10))
    assert sink.counts.as_dict() == {
        "written": 5,
        "written_bytes": 964,
        "muted": 0,
        "failed": 0,
        "dropped": 2,
        "dropped: run budget": 2,
    }
    names = [datum.node_name for datum in DebugDumpDir(tmp_path / "run_1_0").dumped_tensor_data]
    assert names == ["v0", "v1", "v4", "v5", "v6"]
    assert caplog.text.count("is not written") == 1


def test_a_thousand_summaries_wake_the_writer_once(tmp_path):
    queue = WriterQueue()
    submitted = []
    submit = queue.submit
    queue.submit = lambda job, *args: submitted.append(job) or submit(job, *args)
    sink = FileSink(tmp_path / "run_1_0", info(), queue=queue)
    table = KeyTable()
    batches = [
        batch_of([summary(number) for number in range(n, n + 100)], table) for n in range(0, 1000, 100)
    ]
    submitted.clear()
    for batch in batches:
        sink.write_batch(batch)
    sink.finish(RunEnd())
    assert len(submitted) == 2
    assert sink.flush(patient(10))
    assert sink.counts.written == 1000


def test_a_batch_leaves_after_a_moment_although_nothing_follows_it(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    sink.write_batch(batch_of([summary(1), summary(2)]))
    deadline = time.monotonic() + patient(10)
    while not sink.counts.written and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sink.counts.written == 2, "before the run has ended"


def test_a_queue_that_stays_full_drops_whole_batches_and_refunds(tmp_path):
    queue, gate = WriterQueue(max_bytes=4 << 20), Gate()
    queue.submit(gate)
    sink = FileSink(tmp_path / "run_1_0", info(), queue=queue, max_wait_secs=0.05)
    for _ in range(5):
        sink.write_batch(batch_of([value(1, 1 << 18), value(2, 1 << 18)]))  # 2 MiB each
    sink.finish(RunEnd())
    gate.opened.set()
    assert sink.flush(patient(10))
    assert sink.counts.written + sink.counts.lost == 10
    assert sink.counts.dropped == {"queue full": 10 - sink.counts.written}
    assert sink._meter.used == sink.counts.written_bytes


def full_beyond(monkeypatch, nbytes):
    """A disk on which no file grows beyond this many bytes."""
    pwrite = os.pwrite

    def write(file, content, position):
        room = nbytes - position
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(file, content[:room], position)

    def writev(file, pieces, position):
        return write(file, b"".join(pieces), position)

    monkeypatch.setattr(device_files.os, "pwrite", write)
    monkeypatch.setattr(device_files.os, "pwritev", writev)


@pytest.mark.parametrize("room", [300, 1000, 2000, 5000])
def test_a_full_disk_loses_what_does_not_fit_and_nothing_else(tmp_path, monkeypatch, caplog, room):
    sink = FileSink(tmp_path / "run_1_0", info())
    assert sink.flush(patient(10))
    full_beyond(monkeypatch, room)
    listed = [value(0, 1), value(1, 200), summary(2), value(3, 300), value(4, 2000), value(5, 0)]
    sink.write_batch(batch_of(listed))
    sink.finish(RunEnd())
    assert sink.flush(patient(10))
    dump = DebugDumpDir(tmp_path / "run_1_0")
    assert sink.counts.written == dump.size > 0
    assert sink.counts.dropped == {"write failed": len(listed) - dump.size}
    assert dump.notices == [f"The writer left records out: dropped {6 - dump.size}, dropped: write failed "
                            f"{6 - dump.size}."]  # fmt: skip
    expected = {each.node_name: each.data.tolist() for each in listed}
    for datum in dump.dumped_tensor_data:
        assert datum.get_tensor().tolist() == expected[datum.node_name]
    assert caplog.text.count("No space left") == 1


def test_one_bad_record_of_a_batch_is_counted_and_the_others_are_written(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    batch = batch_of([value(1, 10), value(2, 10), value(3, 1000)])
    batch.rows["dims"][1] = 11
    sink.write_batch(batch)
    sink.finish(RunEnd())
    sink.flush(patient(10))
    assert sink.counts.dropped == {"write failed": 1}
    names = [datum.node_name for datum in DebugDumpDir(tmp_path / "run_1_0").dumped_tensor_data]
    assert names == ["v1", "v3"]


def test_runs_that_wait_in_memory_keep_batches_as_they_are():
    keeper = Keeper(Retention(when="inf_or_nan", last=2, memory_bytes=1850))
    sink = RetainedSink(keeper, lambda: pytest.fail("nothing is bad"))
    whole, part = batch_of([summary(1), summary(2)]), batch_of([value(1, 400), value(2, 10)])
    sink.write_batch(whole)
    sink.write_batch(part)
    assert sink._held[0] is whole
    (left,) = sink._held[1:]
    assert left.nbytes == len(left.data) == 1600, "or it would keep the memory of the other"
    assert sink.counts.dropped == {"ring memory": 1}


def test_a_batch_with_something_bad_is_kept_whole_although_memory_has_no_room_for_it(tmp_path):
    keeper = Keeper(Retention(when="inf_or_nan", memory_bytes=1000))
    sink = RetainedSink(keeper, lambda: FileSink(tmp_path / "run_1_0", info()))
    sink.write_batch(batch_of([value(1, 400), summary(2), summary(3, nan=1)]))
    sink.finish(RunEnd())
    sink.flush(patient(10))
    assert (sink.counts.written, sink.counts.dropped) == (3, {})


def test_a_forked_process_writes_no_batch_into_the_run_of_its_parent(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    sink.flush(patient(10))
    child = os.fork()
    if child == 0:
        sink.write_batch(batch_of([summary(1), summary(2)]))
        os._exit(0 if sink.counts.dropped == {"written in a forked process": 2} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sink.finish(RunEnd())
    sink.flush(patient(10))


class BrokenSink(MemorySink):
    def write_batch(self, batch):
        raise RuntimeError("sink trouble")


def test_a_publisher_hands_batches_over_and_counts_what_a_sink_fails_to_take(caplog):
    heard = []
    sinks = {"memcbk:///a": MemorySink(info(), [heard.append]), "memcbk:///b": BrokenSink(info(), [])}
    watches = [*watch_all("memcbk:///a"), *watch_all("memcbk:///b")]
    run = Publisher(DebugOptions(watches), info(), lambda url, info: sinks[url])
    run.hand_over_batch(batch_of([summary(1), summary(2)], run.keys), (0, 1))
    run.count_muted(3, (1,))
    run.finish([], "stopped early")
    assert [record.node_name for record in heard] == ["p1", "p2"]
    assert sinks["memcbk:///a"].counts.muted == 0
    assert sinks["memcbk:///b"].counts.as_dict()["muted"] == 3
    assert sinks["memcbk:///b"].counts.dropped == {"sink failed": 2}
    assert caplog.text.count("sink trouble") == 1


def test_runs_with_the_same_watches_share_a_table_of_keys():
    def publisher(*ops):
        return Publisher(
            DebugOptions(watch_all("memcbk:///a", *ops)), info(), lambda *_: MemorySink(info(), [])
        )

    first = publisher("DebugIdentity")
    assert publisher("DebugIdentity").keys is first.keys
    assert publisher("DebugHash").keys is not first.keys
