"""The same queries over the packed layout, written in either way, and the tfdbg layout of one run (E11–E29)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensortap.reader import (
    DebugDumpDir,
    InconvertibleTensorProto,
    WatchKeyDoesNotExistInDebugDumpDirError,
    has_inf_or_nan,
)
from tensortap.store import export_tfdbg
from tests.store.sample import CPU, GPU, INFO, START, nodes, records, write_sample

IDENTITY = "DebugIdentity"


@pytest.fixture(params=["packed", "batches", "tfdbg"])
def dump(request, tmp_path):
    path = write_sample(tmp_path / "root", batches=request.param == "batches")
    if request.param == "tfdbg":
        report = export_tfdbg(path, tmp_path / "tfdbg")
        assert report.written == len(records())
        assert report.notices == []
        path = tmp_path / "tfdbg"
    return DebugDumpDir(path)


def test_the_run_is_described(dump):  # E18
    assert dump.core_metadata.global_step == 42
    assert dump.core_metadata.session_run_index == INFO.index
    assert dump.core_metadata.input_names == ["x:0"]
    assert dump.core_metadata.target_nodes == ["train"]
    assert dump.run_fetches_info == "['loss']"
    assert dump.run_feed_keys_info == "['x']"
    assert dump.notices == []


def test_data_in_time_order(dump):  # E19
    times = [datum.timestamp for datum in dump.dumped_tensor_data]
    assert times == sorted(times)
    assert dump.size == len(times) == len(records())
    assert dump.t0 == START
    assert sorted(dump.devices()) == sorted([CPU, GPU])


def test_values(dump):  # E24, E29
    assert dump.get_tensors("w", 0, IDENTITY)[0].tolist() == np.arange(600).reshape(2, 300).tolist()
    (half,) = dump.get_tensors("fc/addmm", 0, IDENTITY)
    assert half.dtype == ml_dtypes.bfloat16
    assert half[0] == 1.5
    (empty,) = dump.get_tensors("split", 0, IDENTITY)
    assert (empty.shape, empty.dtype) == ((0, 4), np.float16)
    (strings,) = dump.get_tensors("split", 1, IDENTITY)
    assert strings.tolist() == [b"ab", b"\xff\0"]
    assert dump.get_tensors("loss", 0, IDENTITY) == [3.25, -np.inf]
    (none,) = dump.get_tensors("train", 0, IDENTITY)
    assert isinstance(none, InconvertibleTensorProto)
    assert not none.initialized
    assert "Uninitialized tensor" in str(none)
    assert dump.get_tensors("train", 1, IDENTITY)[0].dtype == ml_dtypes.float8_e4m3fn
    assert dump.get_tensors("x", 0, IDENTITY, device_name=GPU)[0].shape == (2, 3)


def test_files_times_and_sizes(dump):  # E24
    assert dump.get_rel_timestamps("loss", 0, IDENTITY) == [100, 100]
    paths = dump.get_tensor_file_paths("w", 0, IDENTITY)
    assert paths[0].startswith(str(dump.dump_root))
    assert dump.get_dump_sizes_bytes("w", 0, IDENTITY)[0] >= 2400


def test_missing_watch_keys(dump):  # E23, E24
    for query in (
        dump.get_tensors,
        dump.get_tensor_file_paths,
        dump.get_rel_timestamps,
        dump.get_dump_sizes_bytes,
    ):
        with pytest.raises(WatchKeyDoesNotExistInDebugDumpDirError):
            query("loss", 7, IDENTITY)
        with pytest.raises(ValueError):  # noqa: PT011
            query("nowhere", 0, IDENTITY)
        with pytest.raises(ValueError, match="multiple"):
            query("x", 0, IDENTITY)
    assert dump.watch_key_to_data("nowhere:0:DebugIdentity") == []
    assert dump.debug_watch_keys("nowhere") == []


def test_watch_keys(dump):  # E21, E23, without X10
    assert sorted(dump.debug_watch_keys("fc/addmm")) == [
        "fc/addmm:0:DebugIdentity",
        "fc/addmm:0:DebugNumericSummary",
    ]
    first, second = dump.watch_key_to_data("loss:0:DebugIdentity")
    assert (first.extended_timestamp, second.extended_timestamp) == (f"{START + 100}", f"{START + 100}-1")
    with pytest.raises(ValueError, match="exists on 2 devices"):
        dump.watch_key_to_data("x:0:DebugIdentity")
    assert len(dump.watch_key_to_data("x:0:DebugIdentity", device_name=GPU)) == 1
    with pytest.raises(ValueError, match="no device named"):
        dump.watch_key_to_data("x:0:DebugIdentity", device_name="/device:TPU:9")


def test_a_datum(dump):  # E28
    (datum,) = dump.watch_key_to_data("fc/addmm:0:DebugNumericSummary")
    assert str(datum) == f"{{DebugTensorDatum ({CPU}) fc/addmm:0 @ DebugNumericSummary @ {START + 5}}}"
    assert (datum.tensor_name, datum.output_slot, datum.device_name) == ("fc/addmm:0", 0, CPU)


def test_find(dump):  # E25, E26, E27
    bad = [datum.watch_key for datum in dump.find(has_inf_or_nan)]
    values = ["fc/addmm:0:DebugIdentity", "loss:0:DebugIdentity", "train:2:DebugIdentity"]
    assert [key for key in bad if key.endswith("DebugIdentity")] == values
    # Of a pill the counts are asked: the NaN it counted, not whether its own numbers are finite.
    assert "fc/addmm:0:DebugNumericSummary" in bad
    assert [d.node_name for d in dump.find(has_inf_or_nan, first_n=1)] == ["fc/addmm"]
    assert [d.node_name for d in dump.find(has_inf_or_nan, exclude_node_names="fc|tr")] == ["loss"]
    assert dump.find(has_inf_or_nan, device_name=GPU) == []
    assert len(dump.find(lambda datum, value: True, device_name=GPU)) == 1


def test_structure(dump):  # E20, E21
    assert dump.loaded_partition_graphs()
    assert sorted(dump.nodes()) == sorted([node.name for each in nodes().values() for node in each])
    assert dump.nodes(GPU) == ["x"]
    with pytest.raises(ValueError, match="Invalid device name"):
        dump.nodes("/device:TPU:9")
    assert dump.node_inputs("loss") == ["split", "split:1"]
    assert dump.node_inputs("loss", is_control=True) == ["w"]
    assert dump.node_recipients("split") == ["loss", "loss"]
    assert dump.node_recipients("w", is_control=True) == ["loss"]
    assert dump.node_op_type("fc/addmm") == "aten::addmm"
    assert dump.node_attributes("split")["dim"].i == 0
    assert sorted(dump.node_device("x")) == sorted([CPU, GPU])
    assert dump.node_device("loss") == CPU
    assert dump.node_exists("x", device_name=GPU)
    assert not dump.node_exists("loss", device_name=GPU)
    with pytest.raises(ValueError, match="cannot be found"):
        dump.node_exists("loss", device_name="/device:TPU:9")
    with pytest.raises(ValueError, match="multiple"):
        dump.node_op_type("x")
    with pytest.raises(ValueError, match="None of the 2"):
        dump.node_inputs("nowhere")
    with pytest.raises(ValueError, match="does not exist"):
        dump.node_device("nowhere")
    assert {len(graph.node) for graph in dump.partition_graphs()} == {6, 1}
    assert dump.reconstructed_non_debug_partition_graphs()[CPU].node[4].name == "loss"


def test_paths(dump):  # E22
    assert dump.transitive_inputs("loss") == ["split", "fc/addmm", "x", "w"]
    assert dump.transitive_inputs("train", include_control=False) == ["loss", "split", "fc/addmm", "x", "w"]
    assert dump.find_some_path("w", "train", include_control=False, device_name=CPU) == [
        "w", "fc/addmm", "split", "loss", "train",
    ]  # fmt: skip
    assert dump.find_some_path("loss", "w") is None
    with pytest.raises(ValueError, match="multiple"):
        dump.find_some_path("x", "loss")


def test_source_lines(dump):  # E20
    assert dump.node_traceback("fc/addmm:0") == (
        ("train.py", 3, "<module>", ""),
        ("train.py", 12, "step", ""),
    )
    with pytest.raises(KeyError, match="source lines"):
        dump.node_traceback("split")

    class Operation:
        name = "split"
        traceback = (["a.py", 1, "f", "code"],)

    class PythonGraph:
        def get_operations(self):
            return [Operation()]

    assert dump.python_graph is None
    graph = PythonGraph()
    dump.set_python_graph(graph)
    assert dump.python_graph is graph
    assert dump.node_traceback("split") == (("a.py", 1, "f", "code"),)
    with pytest.raises(KeyError, match="Python graph"):
        dump.node_traceback("loss")


def test_refresh_of_a_finished_run_changes_nothing(dump):
    assert dump.refresh() is False
    assert dump.size == len(records())
