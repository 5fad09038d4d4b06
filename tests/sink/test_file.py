"""Records to files, off the training thread; what arrives, what is counted, and what faults do."""

from __future__ import annotations

import errno
import os
import time

import numpy as np
import pytest

from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.reader.session_dir import SessionDir
from tensortap.sink.base import RunEnd, Sink
from tensortap.sink.file import FileSink, open_file_sink
from tensortap.sink.queue import WriterQueue
from tensortap.sink.session_files import SessionFiles
from tensortap.store.description import read_description
from tensortap.store.writer import RunWriter
from tests.patience import patient
from tests.sink.sample import CPU, Gate, info, node, record


def test_a_run_arrives_whole_with_graph_and_counts(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    assert isinstance(sink, Sink)
    sink.write(record("x", np.arange(3.0), timestamp=5))
    sink.write(record("y", np.ones((300, 300), np.float32), timestamp=6))
    sink.finish(RunEnd([node("x"), node("y")], muted=4, failed=1))
    assert sink.flush(patient(10))
    dump = DebugDumpDir(tmp_path / "run_1_0")
    assert dump.get_tensors("x", 0, "DebugIdentity")[0].tolist() == [0, 1, 2]
    assert dump.get_tensors("y", 0, "DebugIdentity")[0].shape == (300, 300)
    assert dump.nodes(CPU) == ["x", "y"]
    assert dump.counts == {
        "written": 2,
        "written_bytes": 24 + 360_000,
        "muted": 4,
        "failed": 1,
        "dropped": 0,
    }
    assert dump.error is None


def test_the_failure_of_a_run_is_told(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    sink.write(record("x"))
    sink.finish(RunEnd([node("x")], "ZeroDivisionError: by zero"))
    sink.finish(RunEnd())  # once is enough
    sink.flush(patient(10))
    dump = DebugDumpDir(tmp_path / "run_1_0")
    assert dump.error == "ZeroDivisionError: by zero"
    assert dump.size == 1


def test_a_sink_that_is_closed_before_its_end_says_so(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    sink.close()
    sink.close()
    sink.flush(patient(10))
    assert "closed before" in read_description(tmp_path / "run_1_0").error


def test_writing_does_not_happen_in_the_training_thread(tmp_path):
    queue, gate = WriterQueue(), Gate()
    queue.submit(gate)
    sink = FileSink(tmp_path / "run_1_0", info(), queue=queue)
    start = time.monotonic()
    for _ in range(10):
        sink.write(record("x", np.zeros(1_000_000)))
    sink.finish(RunEnd())
    assert time.monotonic() - start < patient(5)
    assert not (tmp_path / "run_1_0").exists()
    gate.opened.set()
    assert sink.flush(patient(30))
    assert sink.counts.written == 10


def test_small_records_leave_after_a_moment_although_nothing_follows_them(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    for number in range(3):
        sink.write(record("a"))
        deadline = time.monotonic() + patient(10)
        while sink.counts.written == number and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sink.counts.written == number + 1, "before the run has ended"


def test_a_queue_that_stays_full_drops_and_counts_and_refunds(tmp_path, caplog):
    queue, gate = WriterQueue(max_bytes=4 << 20), Gate()
    queue.submit(gate)
    sink = FileSink(tmp_path / "run_1_0", info(), queue=queue, max_wait_secs=0.05)
    for number in range(5):
        sink.write(record(f"x{number}", np.zeros(1 << 18)))  # 2 MiB each
    sink.finish(RunEnd())
    gate.opened.set()
    assert sink.flush(patient(10))
    assert sink.counts.written + sink.counts.lost == 5
    assert sink.counts.dropped == {"queue full": 5 - sink.counts.written}
    assert sink._meter.used == sink.counts.written_bytes
    assert read_description(tmp_path / "run_1_0").counts["dropped: queue full"] == sink.counts.lost
    assert caplog.text.count("too slow") == 1


def full_after(monkeypatch, records):
    """A disk that takes this many bytes of values and then has no room for large ones."""
    write_many, taken = RunWriter.write_many, []

    def write(self, batch):
        batch = list(batch)
        if len(taken) + len(batch) > records and any(each.nbytes > 100 for each in batch):
            raise OSError(errno.ENOSPC, "No space left on device")
        taken.extend(batch)
        return write_many(self, batch)

    monkeypatch.setattr(RunWriter, "write_many", write)


def test_a_full_disk_loses_what_does_not_fit_and_nothing_else(tmp_path, monkeypatch, caplog):
    full_after(monkeypatch, 2)
    files = SessionFiles(tmp_path)
    for run in range(2):
        sink = FileSink(tmp_path / f"run_1_{run}", info(run), files)
        for number in range(4):
            sink.write(record(f"x{number}", np.zeros(1000 if number % 2 else 1)))
        sink.finish(RunEnd())
        sink.flush(patient(10))
    assert sink.counts.written == 2
    assert sink.counts.dropped == {"write failed": 2}
    assert caplog.text.count("No space left") == 1, "said once, however many runs it hits"
    assert DebugDumpDir(tmp_path / "run_1_1").counts["dropped: write failed"] == 2


def test_a_directory_that_cannot_be_made_harms_nobody(tmp_path, caplog):
    (tmp_path / "blocked").write_text("a file")
    sink = FileSink(tmp_path / "blocked" / "run_1_0", info())
    sink.write(record())
    sink.finish(RunEnd())
    assert sink.flush(patient(10))
    assert sink.counts.dropped == {"write failed": 1}
    assert "Writing under" in caplog.text


def test_a_run_can_be_discarded_finished_or_not(tmp_path):
    for number, finish in enumerate([True, False]):
        sink = FileSink(tmp_path / f"run_1_{number}", info(number))
        sink.write(record())
        if finish:
            sink.finish(RunEnd())
        sink.discard()
        sink.flush(patient(10))
    assert not list(tmp_path.glob("run_*"))


def test_a_forked_process_writes_nothing_into_the_run_of_its_parent(tmp_path):
    sink = FileSink(tmp_path / "run_1_0", info())
    sink.write(record("x"))
    child = os.fork()
    if child == 0:
        sink.write(record("y"))
        sink.finish(RunEnd())
        sink.flush(5)
        os._exit(0 if sink.counts.dropped == {"written in a forked process": 1} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sink.finish(RunEnd())
    sink.flush(patient(10))
    assert [each.node_name for each in DebugDumpDir(tmp_path / "run_1_0").dumped_tensor_data] == ["x"]


def test_a_session_goes_on_in_a_forked_process_with_files_of_its_own(tmp_path):
    files = SessionFiles(tmp_path)
    first = FileSink(tmp_path / "run_1_0", info(0), files)
    first.finish(RunEnd())
    first.flush(patient(10))
    child = os.fork()
    if child == 0:
        sink = FileSink(tmp_path / "run_1_1", info(1), files)
        sink.write(record())
        sink.finish(RunEnd())
        os._exit(0 if sink.flush(patient(10)) and sink.counts.written == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(SessionDir(tmp_path)) == 2


@pytest.mark.parametrize("same_time", [True, False])
def test_a_url_that_is_no_run_directory_is_a_root_with_a_directory_per_run(tmp_path, same_time):
    root = tmp_path / "dumps"
    for number in range(2):
        sink = open_file_sink(str(root), info(0) if same_time else info(number))
        sink.write(record())
        sink.finish(RunEnd())
        assert sink.flush(patient(10))
    assert len(SessionDir(root)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["dumps"]
