"""kill -9 and full disks: what was written stays readable, what was torn is said."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.records import KeyTable, RunInfo
from tensortap.store import SessionStore
from tests.store.sample import INFO, START, batch_of, pill, record

ONE_BY_ONE = """
import sys
from tests.store.sample import *
with SessionStore(sys.argv[1]) as store:
    for index in range(10**6):
        run = store.new_run(RunInfo(index, index, START + index))
        for number in range(40):
            run.write(record(f"n{number}", np.full(10 + 40 * number, number, np.float32), after=number))
            run.write(pill(f"n{number}", after=number))
            print(index, number, flush=True)
        run.finish({CPU: [Node(f"n{number}", "Op", device=CPU) for number in range(40)]}, {})
"""


IN_BATCHES = """
import sys
from tests.store.sample import *
table = KeyTable()
with SessionStore(sys.argv[1]) as store:
    for index in range(10**6):
        run = store.new_run(RunInfo(index, index, START + index))
        for number in range(0, 40, 5):
            some = range(number, number + 5)
            values = [record(f"n{n}", np.full(10 + 40 * n, n, np.float32), after=n) for n in some]
            run.write_batch(batch_of(values + [pill(f"n{n}", after=n) for n in some], table))
            print(index, number + 4, flush=True)
        run.finish({CPU: [Node(f"n{number}", "Op", device=CPU) for number in range(40)]}, {})
"""


@pytest.mark.parametrize("batch", range(5))
@pytest.mark.parametrize("program", [ONE_BY_ONE, IN_BATCHES], ids=["one_by_one", "in_batches"])
def test_kill_at_random_moments_loses_nothing_that_was_written(tmp_path, program, batch):
    moments = random.Random(batch)
    for attempt in range(6):
        root = tmp_path / str(attempt)
        out = tmp_path / f"{attempt}.txt"
        with out.open("w") as stdout:
            writer = subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=stdout)
            while "\n" not in out.read_text() and writer.poll() is None:  # a line may come in two parts
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.25))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        *_, last = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        check_everything_up_to(root, *map(int, last.split()))


def check_everything_up_to(root, run, number):
    session = SessionDir(root)
    by_index = {each.index: each for each in session.runs}
    for index in range(run + 1):
        dump = by_index[index].open()
        expected = number + 1 if index == run else 40
        for each in range(expected):
            (value,) = dump.get_tensors(f"n{each}", 0, "DebugIdentity")
            assert value.tolist() == [each] * (10 + 40 * each)
        if index < run:
            assert dump.notices == []
    history = session.history("n0:0")
    assert history["run"].tolist()[: run + 1] == list(range(run + 1))
    dump = by_index[run].open()
    if dump.source.status == "running":
        assert any("has not finished" in notice for notice in dump.notices)


def test_a_torn_tail_is_reported(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write(record("a", np.arange(1000)))
        run.write(record("b", np.arange(1000)))
    (index,) = run.path.glob("*.index")
    os.truncate(index, index.stat().st_size - 5)
    dump = DebugDumpDir(run.path)
    assert [datum.node_name for datum in dump.dumped_tensor_data] == ["a"]
    assert any("incomplete entry" in notice for notice in dump.notices)


def two_batches(root, table=None):
    """A run of two batches; where the frames of the second one start in the index."""
    table = table or KeyTable()
    with SessionStore(root) as store, store.new_run(INFO) as run:
        run.write_batch(batch_of([pill("a"), record("b", np.arange(100))], table))
        (index,) = run.path.glob("*.index")
        start = index.stat().st_size
        run.write_batch(batch_of([pill("c", after=1), record("d", np.arange(100), after=1)], table))
    return index, start


def seen(run_dir):
    dump = DebugDumpDir(run_dir)
    return {datum.node_name: datum.get_tensor().tolist() for datum in dump.dumped_tensor_data}, dump.notices


def test_a_batch_that_was_torn_at_any_byte_is_reported_and_costs_nothing_before_it(tmp_path):
    index, start = two_batches(tmp_path)
    whole, _ = seen(index.parent)
    assert list(whole) == ["a", "b", "c", "d"]
    content = index.read_bytes()
    for length in range(start + 1, len(content)):
        index.write_bytes(content[:length])
        found, notices = seen(index.parent)
        assert found == {name: whole[name] for name in "ab"}
        assert any(f"the last {length - start} bytes are an incomplete" in notice for notice in notices)


def test_a_bit_that_flips_in_a_batch_costs_that_batch_and_is_reported(tmp_path):
    index, start = two_batches(tmp_path)
    whole, _ = seen(index.parent)
    content = index.read_bytes()
    header = 128
    for place in range(header, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        index.write_bytes(damaged)
        found, notices = seen(index.parent)
        assert found == {name: whole[name] for name in ("ab" if place >= start else "cd")}
        assert any("damaged" in notice or "incomplete" in notice for notice in notices)


def test_a_lost_value_is_left_out_and_reported(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write(record("a", np.arange(1000)))
        run.write(record("b", np.arange(1000)))
    (data,) = run.path.glob("*.data")
    os.truncate(data, 8000)
    dump = DebugDumpDir(run.path)
    assert [datum.node_name for datum in dump.dumped_tensor_data] == ["a"]
    assert any("1 record(s) were left out" in notice for notice in dump.notices)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root on Linux")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(filler.stat().st_size // 4096 * 4096 - leave)
    return filler


def test_a_full_disk_keeps_the_directory_readable_and_the_writer_usable(small_disk):
    with SessionStore(small_disk / "root") as store, store.new_run(INFO) as run:
        run.write(record("before", np.arange(1000)))
        with pytest.raises(OSError, match="No space"):
            run.write(record("huge", np.zeros(1 << 20)))
        run.write(record("after", np.arange(1000)))
        run.finish({}, {"dropped_disk": 1})
    dump = DebugDumpDir(run.path)
    assert [datum.node_name for datum in dump.dumped_tensor_data] == ["after", "before"] or [
        datum.node_name for datum in dump.dumped_tensor_data
    ] == ["before", "after"]
    for datum in dump.dumped_tensor_data:
        assert datum.get_tensor().tolist() == list(range(1000))


@pytest.mark.parametrize("leave", [0, 4096, 8192, 16384, 65536])
def test_a_disk_that_is_full_at_any_write(small_disk, leave):
    store = SessionStore(small_disk / "root")
    first = store.new_run(INFO)
    first.write(pill("fc"))
    filler = fill(small_disk, leave)
    written = []
    for number in range(400):
        try:
            first.write(
                record(f"n{number}", np.full(100 + number % 7 * 60, number, np.float32), after=number)
            )
            written.append(number)
        except OSError:
            pass
    with pytest.raises(OSError, match="No space"):
        for index in range(200):
            store.new_run(RunInfo(index, 0, START))
    try:
        first.finish({}, {})
    except OSError:
        assert not list(first.path.glob(".*"))  # no half-written description stays behind
    dump = DebugDumpDir(first.path)
    assert [datum.node_name for datum in dump.dumped_tensor_data if datum.node_name != "fc"] == [
        f"n{number}" for number in written
    ]
    assert all(datum.get_tensor().size for datum in dump.dumped_tensor_data)
    filler.unlink()
    with store.new_run(RunInfo(9, 9, START + 10**6)) as later:
        later.write(pill("fc", after=10**6))
        later.finish({}, {})
    assert SessionDir(small_disk / "root").history("fc:0")["run"].tolist() == [3, 9]
    store.close()


@pytest.mark.parametrize("leave", [0, 4096, 8192, 16384, 65536])
def test_a_disk_that_is_full_at_any_batch(small_disk, leave):
    store = SessionStore(small_disk / "root")
    run = store.new_run(INFO)
    table = KeyTable()
    run.write_batch(batch_of([pill("fc")], table))
    filler = fill(small_disk, leave)
    written = []
    for number in range(60):
        sizes = [100 + (number + each) % 7 * 60 for each in range(6)]
        values = [np.full(size, number, np.float32) for size in sizes]
        batch = [record(f"n{number}", value, after=number) for value in values]
        try:
            run.write_batch(batch_of(batch, table, gap=number % 3 * 400))
            written += [f"n{number}"] * len(batch)
        except OSError:
            pass
    assert len(written) < 360
    dump = DebugDumpDir(run.path)
    assert [datum.node_name for datum in dump.dumped_tensor_data] == ["fc", *written]
    for datum in dump.dumped_tensor_data[1:]:
        assert set(datum.get_tensor().tolist()) == {int(datum.node_name[1:])}
    filler.unlink()
    run.write_batch(batch_of([pill("later", after=100)], table))
    run.finish({}, {})
    assert SessionDir(small_disk / "root").history("later:0")["run"].tolist() == [3]
    store.close()
