"""Watches given to an engine session directly, as in `RunOptions` of the original (D1 to D10, D22)."""

from __future__ import annotations

import pytest
import torch

import tensortap as tt
from tensortap.errors import FailedPreconditionError
from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.seam.options import RunMetadata, RunOptions
from tensortap.sink.memory import collect
from tensortap.sink.queue import shared_queue
from tensortap.watch.match import add_debug_tensor_watch, watch_graph, watch_graph_with_denylists
from tests.debug.steps import X, linear_session, runs

SEEN = "memcbk:///seen"


def watched(session, *fetches_and_feeds, **arguments):
    """Names of the tensors that a run with `watch_graph(...)` records."""
    options = RunOptions()
    watch_graph(options, session.graph, debug_urls=SEEN, **arguments)
    with collect("seen") as records:
        session.run(*fetches_and_feeds, options=options)
    return [record.tensor_name for record in records]


def test_the_same_tensors_whether_the_graph_was_known_or_not():
    """D3, D5: listed one by one, or matched on the fly, or both."""
    session = linear_session()
    assert not session.graph.known
    unknown = watched(session, "loss", {"x": X})
    assert session.graph.known
    assert watched(session, "loss", {"x": X}) == unknown
    assert len(unknown) == len(set(unknown))


@pytest.mark.parametrize(
    "lists",
    [
        {"node_name_regex_allowlist": r"model/"},
        {"op_type_regex_allowlist": r"aten::(mean|addmm)$"},
        {"tensor_dtype_regex_allowlist": "int"},
        {"node_name_regex_allowlist": r".*weight", "op_type_regex_allowlist": "AccumulateGrad"},
    ],
    ids=str,
)
def test_allow_lists_choose_the_same_tensors_either_way(lists, caplog):
    session = linear_session()
    unknown = watched(session, "loss", **lists)
    assert watched(session, "loss", **lists) == unknown
    assert bool(unknown) == ("tensor_dtype_regex_allowlist" not in lists)


def test_a_program_that_does_something_new_is_watched_there_too():
    def step(x, deeper=False):
        y = x * 2
        return {"y": y.relu() if deeper else y}

    session = tt.torch.Session(step)
    assert watched(session, "y", {"x": X}) == ["x:0", "mul:0"]
    assert watched(session, "y", {"x": X, "deeper": True}) == ["x:0", "mul:0", "relu:0"]


def test_deny_lists():
    """D6."""
    session = tt.torch.Session(lambda x: {"y": (x * 2).relu()})
    for _ in range(2):
        options = RunOptions()
        watch_graph_with_denylists(
            options, session.graph, debug_urls=SEEN, op_type_regex_denylist="aten::mul"
        )
        with collect("seen") as records:
            session.run("y", {"x": X}, options=options)
        assert [record.tensor_name for record in records] == ["x:0", "relu:0"]


def test_one_tensor_and_a_name_that_does_not_exist(caplog):
    """D7, X15: the original ignored it silently."""
    options = RunOptions()
    add_debug_tensor_watch(options, "model/addmm", debug_urls=SEEN)
    add_debug_tensor_watch(options, "model/adddmm", debug_urls=SEEN)
    with collect("seen") as records:
        linear_session().run("loss", options=options)
    assert [record.tensor_name for record in records] == ["model/addmm:0"]
    assert "model/adddmm:0: no such node. Did you mean 'model/addmm'" in caplog.text


def test_an_in_place_op_is_seen_as_it_was_and_as_it_is():
    """D10."""

    def step(x):
        y = x + 1
        y.mul_(10)
        return {"y": y}

    options = RunOptions()
    watch_graph(options, tt.Graph(), debug_urls=SEEN)
    with collect("seen") as records:
        tt.torch.Session(step).run("y", {"x": torch.zeros(2)}, options=options)
    values = {each.tensor_name: memoryview(each.data).cast("B").cast("f").tolist() for each in records}
    assert values == {"x:0": [0, 0], "add:0": [1, 1], "mul_:0": [10, 10]}


def test_a_plain_directory_gets_a_run_directory_per_run(tmp_path):
    session = linear_session()
    options = RunOptions()
    watch_graph(options, session.graph, ["DebugIdentity", "DebugNumericSummary"], f"FILE://{tmp_path}/dumps")
    metadata = RunMetadata()
    for _ in range(2):
        session.run("loss", options=options, run_metadata=metadata)
    assert shared_queue().drain(30)
    dumps = runs(tmp_path / "dumps")
    assert len(dumps) == 2
    assert dumps[1].nodes() == [node.name for node in metadata.nodes]
    assert dumps[1].core_metadata.global_step == 1


def test_a_run_directory_by_its_own_name(tmp_path):
    session = linear_session()
    options = RunOptions()
    watch_graph(
        options, session.graph, debug_urls=f"file://{tmp_path}/run_1700000000000000_0", global_step=41
    )
    session.run("loss", options=options)
    assert shared_queue().drain(30)
    dump = DebugDumpDir(tmp_path / "run_1700000000000000_0")
    assert dump.size
    assert dump.core_metadata.global_step == 41


def test_a_mistake_is_told_before_the_step_runs():
    """D22."""
    session = linear_session()
    options = RunOptions()
    watch_graph(options, session.graph, debug_urls="memcbk:///unheard")
    with pytest.raises(FailedPreconditionError, match="unheard"):
        session.run("loss", options=options)
    assert session.global_step == 0


def test_unwatched_runs_afterwards_are_unaffected():
    """D9."""
    session, plain = linear_session(), linear_session()
    watched(session, "loss")
    plain.run("loss")
    with collect("seen") as records:
        assert session.run("loss") == plain.run("loss")
    assert records == []
