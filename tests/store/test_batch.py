"""Batches on disk: the same as their records one by one, whatever lies where; what cannot be is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.records import RECORD_ROW, KeyTable, Record, RecordBatch, RecordKey, RunInfo
from tensortap.store import SessionStore
from tensortap.store.health import HealthLog
from tensortap.wire.values import as_bytes
from tests.store.sample import CPU, GPU, INFO, START, batch_of, pill, record, records, write_sample

shapes = st.lists(st.integers(0, 3), max_size=8) | st.lists(st.integers(1, 400), max_size=1)
dtypes = st.sampled_from(["float32", "float64", "int8", "bool", "bfloat16", "complex64"])


def value_of(dtype, shape, seed):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return (np.random.default_rng(seed).integers(0, 2, shape)).astype(kind)


values = st.builds(
    lambda node, slot, dtype, shape, seed, device, after: record(
        node, value_of(dtype, shape, seed), slot=slot, device=device, after=after, dtype=dtype
    ),
    st.sampled_from(["a", "b/c", "b//c", "ä", "\udcff", ""]),
    st.integers(0, 2),
    dtypes,
    shapes,
    st.integers(0, 9),
    st.sampled_from([CPU, CPU, GPU]),
    st.integers(0, 5),
)
pills = st.builds(
    lambda node, nan, after, device: pill(node, nan=nan, after=after, device=device),
    st.sampled_from(["a", "fc"]),
    st.integers(0, 3),
    st.integers(0, 5),
    st.sampled_from([CPU, CPU, GPU]),
)
odd = st.builds(
    lambda size: record("odd", np.ones(size), op="DebugNumericSummary"), st.integers(0, 100)
) | st.just(Record("q", 0, "DebugIdentity", CPU, START, "quaternion", (3,), bytes(20)))
layouts = st.fixed_dictionaries(
    {"alignment": st.sampled_from([8, 64]), "gap": st.sampled_from([0, 700]), "backwards": st.booleans()}
)


def content(root):
    """Everything a reader can tell about a session of one run."""
    session = SessionDir(root)
    (run,) = session.runs
    dump = run.open(validate=False)
    listed = [
        (
            datum.device_name,
            datum.node_name,
            datum.output_slot,
            datum.debug_op,
            datum.extended_timestamp,
            str(datum.get_tensor()),
        )
        for datum in dump.dumped_tensor_data
    ]
    stored = [(each.dtype, each.shape, each.nbytes) for data in dump.source.tensors.values() for each in data]
    history = [session.history(name).tobytes() for name in session.tensors()]
    return listed, stored, session.tensors(), history, dump.notices


def write(root, groups, layout=None):
    """Write groups of records, each as a batch if there is a layout."""
    shutil.rmtree(root, ignore_errors=True)
    table = KeyTable()
    with SessionStore(root) as store, store.new_run(INFO) as run:
        for group in groups:
            if layout is None:
                run.write_many(group)
            elif group:
                run.write_batch(batch_of(group, table, **layout))
        run.finish({}, {})
    return content(root)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(values | pills | odd, max_size=6), max_size=3), layouts)
def test_a_batch_and_its_records_one_by_one_are_the_same_to_a_reader(tmp_path, groups, layout):
    assert write(tmp_path / "batches", groups, layout) == write(tmp_path / "single", groups)


@settings(max_examples=100, deadline=None)
@given(st.lists(values | pills | odd, min_size=1, max_size=6), layouts, st.data())
def test_a_batch_can_be_iterated_selected_and_joined(listed, layout, data):
    def same(batch):
        return [(each.watch_key, each.device, each.shape, as_bytes(each.data).tobytes()) for each in batch]

    expected = same(listed)
    table = KeyTable()
    assert same(batch_of(listed, table, **layout)) == expected
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(listed), max_size=len(listed))))
    batch = batch_of(listed, table, **layout)
    assert same(batch.select(mask)) == [each for each, kept in zip(expected, mask, strict=True) if kept]
    border = data.draw(st.integers(0, len(listed)))
    parts = [batch.select(slice(border)), batch_of(listed[border:], table, **layout)]
    assert same(RecordBatch.joined(parts)) == expected
    assert sum(len(part) for part in batch.per_device()) == len(listed)
    for part in batch.per_device():
        assert {each.device for each in part} == {part.device}


def test_large_values_are_written_in_one_piece_aligned_and_mapped(tmp_path, monkeypatch):
    from tensortap.store import device_files

    writes = []
    write_all = device_files._write_all
    monkeypatch.setattr(
        device_files, "_write_all", lambda *args: writes.append(len(args[1])) or write_all(*args)
    )
    listed = [record(f"n{number}", np.full(1000, number, np.float32)) for number in range(20)]
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write(pill("first"))
        writes.clear()
        size = run.write_batch(batch_of(listed))
        assert writes == [20 * 4032 - 32]
        assert run.nbytes == sum(path.stat().st_size for path in run.path.iterdir() if path.suffix != ".json")
        assert size >= 80_000
        writes.clear()
        run.write_batch(batch_of(listed, gap=5000))
        assert writes == [4000] * 20, "what lies between them is not written"
        writes.clear()
        small = [record(f"n{number}", np.full(number, number, np.float32)) for number in range(20)]
        run.write_batch(batch_of([each for pair in zip(listed, small, strict=True) for each in pair]))
        assert len(writes) == 1, "small ones among them go along"
    for datum in DebugDumpDir(run.path).dumped_tensor_data[1:]:
        if not datum.get_tensor().size:
            continue
        value = datum.get_tensor()
        assert value.ctypes.data % 64 == 0
        assert not value.flags.owndata
        assert set(value) == {int(datum.node_name[1:])}


def test_a_batch_larger_than_a_frame_is_split(tmp_path):
    listed = [record(f"n{number}", np.full(60, number)) for number in range(5000)]
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write_batch(batch_of(listed, alignment=8))
    assert not list(run.path.glob("*.data"))
    found = DebugDumpDir(run.path).dumped_tensor_data
    assert [datum.node_name for datum in found] == [each.node_name for each in listed]
    assert all(set(datum.get_tensor()) == {int(datum.node_name[1:])} for datum in found)


def broken(**changes):
    batch = batch_of([record("a", np.arange(3.0)), record("b", np.arange(1000.0))])
    for column, value in changes.items():
        batch.rows[column][1] = value
    return batch


@pytest.mark.parametrize(
    "change",
    [
        {"key": 2},
        {"rank": 9},
        {"nbytes": 7992},
        {"nbytes": -8},
        {"offset": 1 << 40},
        {"offset": (1 << 63) - 8},
        {"offset": -8},
        {"offset": 12},
        {"dims": -1},
        {"dims": 999},
    ],
    ids=str,
)
def test_a_batch_that_contradicts_itself_is_refused_and_leaves_no_trace(tmp_path, change):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write(record("before", np.arange(1000)))
        before = run.nbytes
        with pytest.raises(ValueError, match="batch"):
            run.write_batch(broken(**change))
        assert run.nbytes == before
        run.write_batch(broken())
    assert [d.node_name for d in DebugDumpDir(run.path).dumped_tensor_data] == ["before", "a", "b"]


def test_a_name_that_no_frame_can_hold_is_refused_and_leaves_no_trace(tmp_path):
    listed = [record("fine", np.arange(1000)), record("n" * (2 << 20), np.arange(1000))]
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        with pytest.raises(ValueError, match="1 MiB"):
            run.write_batch(batch_of(listed))
        run.write_batch(batch_of(listed[:1]))
    dump = DebugDumpDir(run.path)
    assert [datum.node_name for datum in dump.dumped_tensor_data] == ["fine"]
    assert (run.path / dump.dumped_tensor_data[0].file_path).stat().st_size == 8000


def test_an_empty_batch_is_nothing_and_a_finished_run_takes_none(tmp_path):
    empty = RecordBatch(KeyTable(), np.zeros(0, RECORD_ROW), b"")
    assert (len(empty), empty.nbytes, list(empty), empty.per_device()) == (0, 0, [], [])
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        assert run.write_batch(empty) == 0
        run.finish({}, {})
        with pytest.raises(ValueError, match="already finished"):
            run.write_batch(batch_of([pill("fc")]))


def test_rows_have_the_layout_that_other_languages_fill():
    assert RECORD_ROW.itemsize == 96
    assert [RECORD_ROW.fields[name][1] for name in RECORD_ROW.names] == [0, 4, 8, 16, 24, 32]


def test_a_table_gives_a_key_one_number_for_good():
    table = KeyTable()
    keys = [RecordKey(f"n{number % 50}", 0, "DebugIdentity", CPU, "float32") for number in range(200)]
    assert [table.add(key) for key in keys] == [number % 50 for number in range(200)]
    assert len(table) == 50
    assert [table[number] for number in range(50)] == keys[:50]
    assert table.devices == {CPU}


def test_one_table_serves_many_runs_and_roots(tmp_path):
    table = KeyTable()
    for root in (tmp_path / "a", tmp_path / "b"):
        with SessionStore(root) as store:
            for index in range(70):  # past the point at which the history is regrouped
                with store.new_run(RunInfo(index, index, START + index)) as run:
                    names = ["fc", "late", f"of {root.name}"] if index > 5 else ["fc"]
                    run.write_batch(
                        batch_of([pill(name, nan=index % 4, after=index) for name in names], table)
                    )
                    run.write(pill("single", after=index))
                    run.finish({}, {})
        session = SessionDir(root)
        assert session.history("fc:0")["nan"].tolist() == [index % 4 for index in range(70)]
        assert session.history("late:0")["run"].tolist() == list(range(6, 70))
        assert session.tensors() == sorted(["fc:0", "late:0", f"of {root.name}:0", "single:0"])


def test_numbers_of_a_transaction_that_failed_are_forgotten(tmp_path, monkeypatch):
    packed = HealthLog._packed

    def broken(self, *args):
        yield from packed(self, *args)
        raise sqlite3.OperationalError("disk I/O error")

    table = KeyTable()
    with SessionStore(tmp_path) as store:
        for index, names in enumerate([["other", "fc"], ["fc", "new"]]):
            with monkeypatch.context() as patch, store.new_run(RunInfo(index, index, START + index)) as run:
                if index == 0:
                    patch.setattr(HealthLog, "_packed", broken)
                run.write_batch(batch_of([pill(name, nan=index, after=index) for name in names], table))
                run.finish({}, {})
    session = SessionDir(tmp_path)
    assert "disk I/O error" in session.run(0).notices[0]
    for name, expected in {"fc:0": [0, 1], "other:0": [0], "new:0": [1]}.items():
        assert session.history(name)["nan"].tolist() == expected


def test_directories_of_version_1_are_read(tmp_path):
    run_dir = write_sample(tmp_path)
    new = content(tmp_path)
    for index in run_dir.glob("*.index"):
        header = bytearray(index.read_bytes())
        assert header[8] == 4
        header[8] = 1
        index.write_bytes(header)
    for file in (tmp_path / "tensortap.json", run_dir / "run.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "version": 1}))
    assert content(tmp_path) == new
    assert len(new[0]) == len(records())
