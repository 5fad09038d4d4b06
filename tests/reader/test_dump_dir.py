"""What only one layout can show: growth, missing graphs, validation, file names, bad values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensortap.reader import DebugDumpDir, DebugTensorDatum, InconvertibleTensorProto, has_inf_or_nan
from tensortap.records import Node
from tensortap.store import SessionStore, export_tfdbg
from tensortap.store.tfdbg import device_name_to_device_path, device_path_to_device_name
from tensortap.wire.graph_def import nodes_to_proto
from tests.store.sample import CPU, GPU, INFO, START, nodes, pill, record, records, write_sample


def test_a_missing_directory(tmp_path):  # E11
    with pytest.raises(OSError, match="does not exist"):
        DebugDumpDir(tmp_path / "nowhere")


def test_an_empty_directory(tmp_path):  # E11, E18
    dump = DebugDumpDir(tmp_path)
    assert (dump.size, dump.t0, dump.dumped_tensor_data, dump.devices()) == (0, None, [], [])
    assert dump.core_metadata == []
    assert dump.run_fetches_info == []
    assert not dump.loaded_partition_graphs()


def test_a_run_is_readable_while_it_grows(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        dump = DebugDumpDir(run.path)
        assert dump.size == 0
        sizes = []
        for each in records():
            run.write(each)
            assert dump.refresh()
            sizes.append(dump.size)
            assert dump.watch_key_to_data(each.watch_key, device_name=each.device)
        assert sizes == list(range(1, len(records()) + 1))
        assert not dump.refresh()
        early = dump.get_tensors("w", 0, "DebugIdentity")[0]
        assert any("has not finished" in notice for notice in dump.notices)
        run.finish(nodes(), {})
    assert dump.refresh()
    assert dump.notices == []
    assert dump.node_op_type("loss") == "aten::sum"
    assert early[1, 299] == 599


def test_without_graphs_tensors_can_still_be_read(tmp_path):  # E12
    dump = DebugDumpDir(write_sample(tmp_path, finish=False))
    assert dump.get_tensors("loss", 0, "DebugIdentity") == [3.25, -np.inf]
    assert dump.debug_watch_keys("loss") == ["loss:0:DebugIdentity"]
    for query in (
        dump.nodes,
        dump.partition_graphs,
        lambda: dump.node_inputs("loss"),
        lambda: dump.node_exists("x"),
    ):
        with pytest.raises(LookupError):
            query()
    with pytest.raises(LookupError):
        dump.node_traceback("loss")


def test_the_caller_may_supply_graphs(tmp_path, caplog):  # E12
    graphs = [nodes_to_proto(each) for each in nodes().values()]
    dump = DebugDumpDir(write_sample(tmp_path, finish=False), partition_graphs=graphs)
    assert dump.node_op_type("loss") == "aten::sum"
    assert "the one the caller supplied" in caplog.text


@pytest.mark.parametrize("name", ["a_b", "node_0_DebugIdentity_12x", "node_x_DebugIdentity_12", "n_0_Op_1-x"])
def test_file_names_that_follow_no_pattern(tmp_path, name):  # E14
    folder = tmp_path / device_name_to_device_path(CPU)
    folder.mkdir()
    (folder / name).touch()
    with pytest.raises(ValueError, match="naming pattern"):
        DebugDumpDir(tmp_path)


def test_a_datum_from_a_file_name(tmp_path):  # E4, E28
    place = device_name_to_device_path(GPU)
    datum = DebugTensorDatum.from_file(tmp_path, f"{place}/ns/my_node_a_1_DebugIdentity_1700-3")
    assert (datum.node_name, datum.output_slot, datum.timestamp) == ("ns/my_node_a", 1, 1700)
    assert (datum.extended_timestamp, datum.device_name) == ("1700-3", GPU)
    assert datum.dump_size_bytes is None


@pytest.mark.parametrize("device", [CPU, GPU, "/job:ps/replica:1/task:12/device:GPU:3"])
def test_device_names_and_paths(device):  # E3
    assert device_path_to_device_name(device_name_to_device_path(device)) == device


def test_time_order_is_numeric(tmp_path):  # without X11
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        for number in range(12):
            run.write(record("a", np.float32(number)))
        run.write(record("late", np.float32(0), after=10**17))
    report = export_tfdbg(run.path, tmp_path / "tfdbg")
    assert report.written == 13
    for path in (run.path, tmp_path / "tfdbg"):
        values = DebugDumpDir(path).get_tensors("a", 0, "DebugIdentity")
        assert [float(value) for value in values] == list(range(12))
        assert DebugDumpDir(path).dumped_tensor_data[-1].node_name == "late"


def written(tmp_path, listed, graph):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        for each in listed:
            run.write(each)
        run.finish({CPU: graph}, {})
    return run.path


def chain(first_op="Op", second_op="Op"):
    return [
        Node("a", first_op, device=CPU),
        Node("b", second_op, ("a:0", "c:0"), device=CPU),
        Node("c", "Op", device=CPU),
    ]


def test_a_dumped_node_must_be_in_the_graph(tmp_path):  # E16
    path = written(tmp_path, [record("z", 1)], chain())
    with pytest.raises(ValueError, match="not found in partition graphs"):
        DebugDumpDir(path)
    assert DebugDumpDir(path, validate=False).size == 1


def test_causality(tmp_path):  # E16
    order = [record("b", 1, after=1), record("a", 1, after=2)]
    path = written(tmp_path / "bad", order, chain())
    with pytest.raises(ValueError, match="Causality violated"):
        DebugDumpDir(path)
    assert DebugDumpDir(path, validate=False).size == 2
    ties = [record("b", 1, after=2), record("a", 1, after=2)]
    assert DebugDumpDir(written(tmp_path / "tie", ties, chain())).size == 2
    assert DebugDumpDir(written(tmp_path / "loop", order, chain("NextIteration"))).size == 2
    one = [record("a", 1, after=1), record("b", 1, after=2), record("c", 1, after=3)]
    assert DebugDumpDir(written(tmp_path / "merge", one, chain(second_op="Merge"))).size == 3
    with pytest.raises(ValueError, match="Causality violated"):
        DebugDumpDir(written(tmp_path / "needs both", one, chain()))


def test_duplicate_nodes(tmp_path):  # E15
    graph = nodes_to_proto(chain())
    graph.node.add().CopyFrom(graph.node[0])
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write(record("a", 1))
    with pytest.raises(ValueError, match="Duplicate node name"):
        DebugDumpDir(run.path, partition_graphs=[graph])


def test_double_slashes_are_collapsed(tmp_path):  # E13
    graph = [Node("s//a", "Op", device=CPU), Node("s/b", "Op", ("s//a:0",), device=CPU)]
    dump = DebugDumpDir(written(tmp_path, [record("s//a", 1)], graph))
    assert dump.node_recipients("s/a") == ["s/b"]
    assert dump.get_tensors("s/a", 0, "DebugIdentity")[0] == 1


def test_debugger_nodes_are_hidden(tmp_path):  # E9, E20
    graph = nodes_to_proto(chain())
    graph.node.add(name="__copy_a_0", op="Copy", input=["a"], device=CPU)
    graph.node.add(name="__dbg_a:0_0_DebugIdentity", op="DebugIdentity", input=["__copy_a_0"], device=CPU)
    b = graph.node[1]
    b.input[:] = ["__copy_a_0", "c", "^__dbg_a:0_0_DebugIdentity"]
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write(record("a", 1))
    dump = DebugDumpDir(run.path, partition_graphs=[graph])
    assert dump.nodes() == ["a", "b", "c"]
    assert dump.node_inputs("b") == ["a", "c"]
    assert dump.node_inputs("b", is_control=True) == []
    assert dump.node_recipients("a") == ["b"]
    assert [node.name for node in dump.reconstructed_non_debug_partition_graphs()[CPU].node] == [
        "a",
        "b",
        "c",
    ]


def test_deep_graphs(tmp_path):
    graph = [Node("n0", "Op", device=CPU)]
    graph += [Node(f"n{i}", "Op", (f"n{i - 1}:0",), device=CPU) for i in range(1, 5000)]
    dump = DebugDumpDir(written(tmp_path, [record("n0", 1)], graph))
    assert len(dump.transitive_inputs("n4999")) == 4999
    assert len(dump.find_some_path("n0", "n4999")) == 5000


def test_paths_through_a_changed_variable(tmp_path):  # E22
    graph = [
        Node("v", "VariableV2", device=CPU),
        Node("delta", "Const", device=CPU),
        Node("add", "AssignAdd", ("v:0", "delta:0"), device=CPU),
        Node("read", "Identity", ("v:0",), device=CPU),
    ]
    dump = DebugDumpDir(written(tmp_path, [record("v", 1)], graph))
    assert dump.find_some_path("delta", "read") is None
    assert dump.find_some_path("delta", "read", include_reversed_ref=True) == ["delta", "add", "v", "read"]


FLOATS = [
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "complex64",
    "complex128",
]
FINITE_OR_NAN = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float8_e3m4"]


@pytest.mark.parametrize("dtype", FLOATS + FINITE_OR_NAN)
def test_bad_values_of_every_dtype(dtype):  # E27
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    good = np.array([1, 2], kind)
    assert not has_inf_or_nan(None, good)
    assert has_inf_or_nan(None, np.array([1, np.nan]).astype(kind))
    if dtype in ("float16", "bfloat16", "float8_e5m2", "complex64"):
        assert has_inf_or_nan(None, np.array([1, -np.inf]).astype(kind))
    if kind.kind == "c":
        assert has_inf_or_nan(None, np.array([complex(0, np.nan)], kind))


def test_values_that_cannot_be_bad():  # E27
    for value in (
        np.array([1, 2]),
        np.array([True]),
        np.array([b"a"], object),
        np.array(["nan"]),
        np.zeros((0, 2), np.float32),
        np.array([(1, np.nan)], [("a", "i4"), ("b", "f4")]),
        np.array([1], ml_dtypes.int4),
        InconvertibleTensorProto("x", initialized=False),
        None,
    ):
        assert not has_inf_or_nan(None, value)


def test_source_files_are_kept(tmp_path):
    dump = DebugDumpDir(write_sample(tmp_path))
    (path,) = dump.source_files()
    assert "write_sample" in dump.source_text(path)
    with pytest.raises(KeyError):
        dump.source_text("other.py")


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    path = write_sample(tmp_path / "root")
    export_tfdbg(path, tmp_path / "tfdbg")
    folder = tmp_path / "tfdbg" / device_name_to_device_path(CPU)
    (folder / "n_0_DebugIdentity_1").symlink_to(outside)
    dump = DebugDumpDir(tmp_path / "tfdbg")
    assert dump.size == len(records())
    assert any("not followed" in notice for notice in dump.notices)
    for file in path.glob("*.data"):
        file.unlink()
        file.symlink_to(outside)
    assert all(datum.node_name != "w" for datum in DebugDumpDir(path).dumped_tensor_data)


def test_ranks_and_steps_of_pills(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(INFO) as run:
        run.write(pill("fc", nan=2))
    (datum,) = DebugDumpDir(run.path).dumped_tensor_data
    assert datum.get_tensor()[2] == 2
    assert datum.timestamp == START
