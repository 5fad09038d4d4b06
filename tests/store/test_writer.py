"""Writing runs: files, names, roll back, content stored once, health rows."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.records import Record, RunInfo, device_name
from tensortap.store import RunWriter, SessionStore
from tests.store.sample import CPU, INFO, START, nodes, pill, record, records, write_sample


def test_three_files_per_run_and_device_at_most(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        for number in range(500):
            run.write(record(f"n{number}", np.zeros(1000, np.float32), after=number))
            run.write(
                record(f"n{number}", np.zeros(1000, np.float32), after=number, device=device_name("gpu"))
            )
        run.finish({}, {})
    assert len(list(run.path.iterdir())) == 5  # two devices


def test_values_are_aligned_and_mapped(tmp_path):
    dump = DebugDumpDir(write_sample(tmp_path))
    (value,) = dump.get_tensors("w", 0, "DebugIdentity")
    assert value.ctypes.data % 64 == 0
    assert not value.flags.owndata
    assert not value.flags.writeable


def test_bytes_are_counted(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        first = run.write(record("a", np.zeros(1000, np.float64)))
        assert first >= 8000
        assert run.nbytes >= first
        on_disk = sum(path.stat().st_size for path in run.path.iterdir() if path.suffix != ".json")
        assert run.nbytes == on_disk


def test_two_runs_of_one_microsecond_get_two_directories(tmp_path):
    with SessionStore(tmp_path) as a, SessionStore(tmp_path) as b:
        paths = {a.new_run(INFO).path, b.new_run(INFO).path, a.new_run(INFO).path}
    assert len(paths) == 3
    assert all(path.name.count("_") == 2 for path in paths)  # C25


def test_graphs_and_sources_are_stored_once(tmp_path):
    for index in range(3):
        write_sample(tmp_path, info=RunInfo(index, index, START + index))
    assert len(list((tmp_path / "graphs").iterdir())) == 2  # one per device
    assert len(list((tmp_path / "sources").iterdir())) == 1


def test_several_ranks_write_one_root(tmp_path):
    def rank(task):
        device = device_name("cpu", rank=task)
        with SessionStore(tmp_path) as store:
            for index in range(20):
                with store.new_run(RunInfo(index, index, START + index, task)) as run:
                    run.write(pill("fc", after=index, device=device))
                    run.finish({}, {})

    threads = [threading.Thread(target=rank, args=(task,)) for task in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    session = SessionDir(tmp_path)
    assert len(session.runs) == 80
    assert session.tasks() == [0, 1, 2, 3]
    history = session.history("fc:0")
    assert len(history) == 80
    for task in range(4):
        assert history["step"][history["task"] == task].tolist() == list(range(20))
    assert session.run(3, task=2).core_metadata.session_run_index == 3
    with pytest.raises(ValueError, match="tasks"):
        session.run(3)


def test_a_record_that_does_not_fit_its_shape_is_refused_and_leaves_no_trace(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        with pytest.raises(ValueError, match="cannot be"):
            run.write(Record("a", 0, "DebugIdentity", CPU, START, "float32", (3,), bytes(8)))
        with pytest.raises(ValueError, match="1 MiB"):
            run.write(record("n" * (2 << 20), np.zeros(1000)))
        run.write(record("b", np.arange(1000)))
        run.finish({}, {})
    dump = DebugDumpDir(run.path)
    assert [datum.node_name for datum in dump.dumped_tensor_data] == ["b"]
    assert dump.notices == []


def test_writing_many_equals_writing_each(tmp_path):
    with SessionStore(tmp_path) as store:
        with store.new_run(INFO) as one, store.new_run(INFO) as many:
            for each in records():
                one.write(each)
            many.write_many(records())
            assert one.nbytes == many.nbytes


def test_the_description_says_how_the_run_ended(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        assert json.loads((run.path / "run.json").read_text())["status"] == "running"
        run.finish(nodes(), {"dropped_queue": 7}, error="boom at fc/addmm")
        run.finish(nodes(), {})  # a second call changes nothing
    dump = DebugDumpDir(run.path)
    assert dump.error == "boom at fc/addmm"
    assert dump.counts == {"dropped_queue": 7}
    assert dump.notices == ["The writer left records out: dropped_queue 7."]
    with pytest.raises(ValueError, match="already finished"):
        run.write(records()[0])


def test_graphs_can_be_stored_before_a_run_dies(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.store_graphs(nodes())
        run.write(records()[0])
    dump = DebugDumpDir(run.path)
    assert dump.node_op_type("fc/addmm") == "aten::addmm"
    assert "has not finished" in dump.notices[0]


def test_abandoning_deletes_the_run_and_keeps_the_health_of_a_finished_one(tmp_path):
    with SessionStore(tmp_path) as store:
        with store.new_run(INFO) as run:
            run.write(pill("fc"))
        run.abandon()
        run.abandon()
        assert not run.path.exists()
        with store.new_run(INFO) as run:
            run.write(pill("fc"))
            run.finish({}, {})
        run.abandon()
    session = SessionDir(tmp_path)
    assert session.runs == []
    assert session.history("fc:0")["step"].tolist() == [42]


def test_a_writer_works_without_a_store(tmp_path):
    with RunWriter(tmp_path / "run_1_0", RunInfo(0, 0, 1)) as run:
        run.write(pill("fc"))
        run.finish({}, {})
    assert len(SessionDir(tmp_path).history("fc:0")) == 1


def test_hostile_names_stay_text(tmp_path):
    names = ["../../x", "/etc/passwd", "a\0b", "n" * 5000, "con", "..", "", "\udcff"]
    devices = ["/job:../../evil/device:CPU:0", "../x", "a\0b", "/" + "d" * 9000]
    with SessionStore(tmp_path / "root") as store, store.new_run(INFO) as run:
        for number, name in enumerate(names):
            run.write(record(name, np.float32(number), device=devices[number % 4]))
        run.finish({}, {}, sources=["a\0b", "/nowhere"])
    dump = DebugDumpDir(run.path)
    assert sorted(datum.node_name for datum in dump.dumped_tensor_data) == sorted(names)
    assert set(dump.devices()) == set(devices)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]
    assert len(list(run.path.iterdir())) == 5
