"""Values carry checksums: a bit that changes on the disk is found when its value is read, and nothing else is lost."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.commands import main
from tensortap.errors import DamagedValueError
from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.records import RunInfo
from tensortap.store import SessionStore, checksum
from tests.store.sample import START, batch_of, record

# The check values of the CRC catalogue and of RFC 3720.
KNOWN = {
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    b"": 0,
}


@pytest.fixture
def without_c(monkeypatch):
    monkeypatch.setattr(checksum, "_native", lambda: None)


def every_way(data: bytes) -> set[int]:
    found = {checksum._crc32c_of(np.frombuffer(data, np.uint8))}
    native = checksum._native()
    if native is not None:
        chosen = native.isa()
        for name in {"portable", chosen}:
            native.use_isa(name)
            found.add(native.crc32c(data))
        native.use_isa(chosen)
    return found


def test_known_values():
    for data, expected in KNOWN.items():
        assert every_way(data) == {expected}


@given(st.binary(max_size=2000), st.integers(0, 15))
def test_all_ways_agree(data, skipped):
    whole = data * 7  # crosses from three short stretches at once to what is left of them
    assert len(every_way(whole[skipped:])) == 1


@pytest.mark.parametrize("size", [767, 768, 24_575, 24_576, 24_577, 100_003, (1 << 24) + 5])
def test_all_ways_agree_on_large_values(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert len(every_way(data)) == 1


def test_many_at_once(monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
    offsets, sizes = np.array([0, 64, 1, 5000]), np.array([5000, 700, 0, 0])
    for algorithm, make in {"crc32c": checksum.crc32c, "crc32": zlib.crc32}.items():
        expected = [make(data[o : o + s]) for o, s in zip(offsets, sizes, strict=True)]
        assert checksum.checksums(algorithm, data, offsets, sizes).tolist() == expected
    native = checksum._native()
    if native is not None:
        for wrong in ([-1, 1], [0, 5001], [4990, 11], [0, -1], [2**62, 2**62]):
            with pytest.raises(ValueError, match="outside the memory"):
                checksum.checksums("crc32c", data, *(np.array([each]) for each in wrong))


def write(root: Path, *, batch: bool, index: int = 0, fsync: bool = False) -> Path:
    values = [record(f"n{n}", np.full(200 + n, n, np.float32), after=n) for n in range(5)]
    with SessionStore(root, fsync=fsync) as store, store.new_run(RunInfo(index, index, START + index)) as run:
        if batch:
            run.write_batch(batch_of(values))
        else:
            run.write_many(values)
        run.finish({}, {})
    return run.path


def flip(run: Path, tensor: int, bit: int = 1) -> None:
    (data,) = run.glob("*.data")
    content = bytearray(data.read_bytes())
    content[content.find(np.float32(tensor).tobytes()) + 4] ^= bit
    data.write_bytes(content)


@pytest.mark.parametrize("batch", [True, False])
def test_a_changed_bit_is_found_and_the_tensor_named(tmp_path, batch):
    run = write(tmp_path, batch=batch)
    flip(run, 3)
    dump = DebugDumpDir(run)
    assert dump.notices == []
    for number in (0, 1, 2, 4):
        (value,) = dump.get_tensors(f"n{number}", 0, "DebugIdentity")
        assert value.tolist() == [number] * (200 + number)
    with pytest.raises(DamagedValueError, match=r"\.data: the value of n3:0:DebugIdentity, 812 bytes at"):
        dump.get_tensors("n3", 0, "DebugIdentity")
    assert [notice.partition(": ")[2] for notice in dump.notices] == [
        "the bytes of n3:0:DebugIdentity have changed since they were written."
    ]
    # The others can still be searched, and whoever wants the value as it is can have it.
    assert len(dump.find(lambda datum, value: True)) == 4
    (as_it_is,) = DebugDumpDir(run, verify=False).get_tensors("n3", 0, "DebugIdentity")
    assert as_it_is[1] != 3


def test_a_value_is_checked_once(tmp_path, monkeypatch):
    dump = DebugDumpDir(write(tmp_path, batch=True))
    (reader,) = dump.source._files.values()
    sizes = []
    monkeypatch.setattr(reader, "_checksum", lambda value: sizes.append(len(value)) or checksum.crc32c(value))
    for _ in range(3):
        dump.get_tensors("n2", 0, "DebugIdentity")
    assert sizes == [808]


@pytest.mark.parametrize("batch", [True, False])
def test_where_nothing_was_built_values_get_the_checksum_of_zlib(tmp_path, without_c, monkeypatch, batch):
    run = write(tmp_path / "zlib", batch=batch)
    flip(run, 3)
    with monkeypatch.context() as patch:
        patch.undo()
        c = write(tmp_path / "crc32c", batch=batch)  # written where it was built, read where it was not
    flip(c, 3)
    for path in (run, c):
        dump = DebugDumpDir(path)
        dump.get_tensors("n2", 0, "DebugIdentity")
        with pytest.raises(DamagedValueError, match="n3"):
            dump.get_tensors("n3", 0, "DebugIdentity")


def test_commands_name_the_damaged_tensor(tmp_path, capsys):
    root = tmp_path / "dumps"
    write(root, batch=True)
    damaged = write(root, batch=True, index=1)

    assert main(["doctor", str(root)]) == 0
    assert capsys.readouterr().out == "2 run(s), 10 values, 10 of them with a checksum: intact.\n"

    flip(damaged, 3)
    assert main(["doctor", str(root)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{damaged.name}: ")
    assert "the value of n3:0:DebugIdentity" in first
    assert last == "2 run(s), 10 values, 10 of them with a checksum: 1 damaged."
    assert main(["doctor", str(root), "--json"]) == 1
    assert [bool(run["damage"]) for run in json.loads(capsys.readouterr().out)["runs"]] == [False, True]

    assert main(["ls", str(root), "-r", "1", "--bad"]) == 0
    assert "n3:0:DebugIdentity" in capsys.readouterr().err
    assert main(["show", str(root), "n3", "-r", "1"]) == 2
    assert "the value of n3:0:DebugIdentity" in capsys.readouterr().err
    for command in (
        ["why"],
        ["find"],
        ["find", "true"],
        ["eval", "`n2:0`.sum()"],
        ["health"],
        ["history", "n3:0"],
    ):
        assert main([command[0], str(root), *command[1:]]) in (0, 1), command
        capsys.readouterr()
    assert main(["export", str(root), "-r", "1", "-o", str(tmp_path / "values.npz")]) == 0
    assert "n3:0:DebugIdentity was left out" in capsys.readouterr().err
    assert len(np.load(tmp_path / "values.npz").files) == 4


def test_a_damaged_index_is_damage_for_the_doctor(tmp_path, capsys):
    run = write(tmp_path, batch=False)
    (index,) = run.glob("*.index")
    content = bytearray(index.read_bytes())
    content[content.find(b"TTr\x01") + 20] ^= 1
    index.write_bytes(content)
    assert main(["doctor", str(tmp_path)]) == 1
    assert "bytes of the index are damaged and were skipped" in capsys.readouterr().out


def test_fsync_at_the_end_of_each_run(tmp_path, monkeypatch):
    synced: list[str] = []
    real = os.fsync

    def fsync(handle):
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "without", batch=True)
    assert synced == []
    run = write(tmp_path / "with", batch=True, fsync=True)
    stem = next(run.glob("*.data")).stem
    assert set(synced[:3]) == {f"{stem}.data", f"{stem}.index", "tensortap.json"}
    assert synced[-2:] == ["run.json", run.name]  # and only then is the run known to be finished
    assert "with" in synced
    assert SessionDir(tmp_path / "with").run(0).notices == []


def test_a_disk_that_cannot_sync_is_said(tmp_path, monkeypatch):
    def fsync(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".data"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    run = write(tmp_path, batch=True, fsync=True)
    assert "may not outlive a power failure" in DebugDumpDir(run).notices[0]
