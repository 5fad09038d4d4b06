"""Exports open in the tools they are for."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from tensortap.reader import DebugDumpDir
from tensortap.store import SessionStore, export_npz, export_parquet, export_safetensors, export_tfdbg
from tests.store.sample import CPU, GPU, INFO, START, record, records, write_sample


def test_npz(tmp_path):
    report = export_npz(write_sample(tmp_path), tmp_path / "values.npz")
    values = np.load(tmp_path / "values.npz")
    assert report.written == len(values.files) == len(records()) - 1  # one has no value
    assert values[f"{CPU[1:]}:w:0:DebugIdentity"].shape == (2, 300)
    assert values[f"{CPU[1:]}:loss:0:DebugIdentity@1"] == -np.inf
    assert values[f"{CPU[1:]}:fc/addmm:0:DebugIdentity"].dtype == np.float32
    assert sum("widened" in notice for notice in report.notices) == 2


def test_npz_of_chosen_records(tmp_path):
    path = write_sample(tmp_path)
    report = export_npz(DebugDumpDir(path), tmp_path / "some.npz", keep=lambda each: each.device == GPU)
    assert report.written == 1


def test_npz_members_lead_nowhere(tmp_path):
    with SessionStore(tmp_path / "root") as store, store.new_run(INFO) as run:
        run.write(record("../../x", 1))
    export_npz(run.path, tmp_path / "values.npz")
    (name,) = zipfile.ZipFile(tmp_path / "values.npz").namelist()
    assert ".." not in name
    assert "/" not in name


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    report = export_safetensors(write_sample(tmp_path), tmp_path / "values.safetensors")
    values = dict(safetensors.deserialize((tmp_path / "values.safetensors").read_bytes()))
    assert report.written == len(values)
    assert values[f"{CPU[1:]}:fc/addmm:0:DebugIdentity"]["dtype"] == "BF16"
    assert values[f"{CPU[1:]}:train:1:DebugIdentity"]["dtype"] == "F8_E4M3"
    w = np.frombuffer(values[f"{CPU[1:]}:w:0:DebugIdentity"]["data"], np.float32)
    assert w.tolist() == list(range(600))
    assert any("train:2" in notice for notice in report.notices)  # complex128 has no safetensors type


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    report = export_parquet(write_sample(tmp_path), tmp_path / "health.parquet")
    assert report.written == 1
    (row,) = parquet.read_table(tmp_path / "health.parquet").to_pylist()
    assert (row["tensor"], row["step"], row["nan"], row["shape"]) == ("fc/addmm:0", 42, 1.0, [4])


def test_tfdbg_needs_an_empty_place(tmp_path):
    path = write_sample(tmp_path)
    with pytest.raises(FileExistsError, match="not empty"):
        export_tfdbg(path, tmp_path)


def test_tfdbg_widens_what_tensorflow_has_no_number_for(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with SessionStore(tmp_path / "root") as store, store.new_run(INFO) as run:
        run.write(record("a", np.array([0.5, 2], ml_dtypes.float8_e3m4)))
        run.write(record("b", np.array([-3, 2], ml_dtypes.int4)))
    report = export_tfdbg(run.path, tmp_path / "tfdbg")
    assert [notice.rpartition(" ")[2] for notice in report.notices] == ["float32.", "int8."]
    dump = DebugDumpDir(tmp_path / "tfdbg")
    assert [each.get_tensor().tolist() for each in dump.dumped_tensor_data] == [[0.5, 2], [-3, 2]]
    assert dump.t0 == START
