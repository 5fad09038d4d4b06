"""Watches of a run on PyTorch: what arrives at a sink, from host memory and from another device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.engines.observe import watching
from tensortap.engines.torch.reduce import DeviceSummaries
from tensortap.engines.torch.tensors import TENSORS, TorchTensors
from tensortap.ops import DebugNumericSummary
from tensortap.pill import ELEMENTS, POS_INF
from tensortap.records import RunInfo
from tensortap.sink.memory import MemorySink, collect
from tensortap.sink.publisher import Publisher
from tensortap.watch.match import add_debug_tensor_watch, watch_run

POSITIVE_INFINITIES = 7  # where a summary counts them

pytestmark = pytest.mark.usefixtures("interceptor")


def step_of(model):
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return {"loss": loss}

    return step


def summaries(records):
    return {record.watch_key: np.frombuffer(record.data, np.float64) for record in records}


def watched(session, x, *debug_ops, **lists):
    options = tt.RunOptions()
    watch_run(options, tt.WatchOptions(list(debug_ops), **lists), "memcbk:///seen")
    with collect("seen") as records:
        session.run(None, {"x": x}, options)
    return list(records)


def test_every_new_value_has_a_record_and_views_have_none():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    session = tt.torch.Session(step_of(model))
    keys = {record.watch_key for record in watched(session, torch.ones(2, 4), "DebugNumericSummary")}
    nodes = {node.tensor(slot): node for node in session.graph.nodes for slot in range(len(node.outputs))}
    executed = {name for name, node in nodes.items() if node.op_type != "Derived" and name != "global_step:0"}
    expected = {n for n in executed if not nodes[n].is_view or nodes[n].op_type == "AccumulateGrad"}
    assert {key.rpartition(":")[0] for key in keys} == expected
    named = watched(session, torch.ones(2, 4), "DebugIdentity", node_name_regex_allowlist="model/0/t$")
    assert [record.watch_key for record in named] == ["model/0/t:0:DebugIdentity"]


SPARSE = {
    # Elements in the same place are added up.
    "coo": (
        lambda x: torch.sparse_coo_tensor(
            [[2, 0, 0], [0, 1, 1]], torch.stack([x[2, 0], x[0, 1], x[0, 1]]), (4, 4)
        ),
        2,
    ),
    "csr": (lambda x: x.to_sparse_csr(), 2),
    "csc": (lambda x: x.to_sparse_csc(), 2),
    "bsr": (lambda x: x.to_sparse_bsr((2, 2)), 8),
    "bsc": (lambda x: x.to_sparse_bsc((2, 2)), 8),
}


@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_of_a_sparse_tensor_what_is_stored_is_summarised_and_copied_with_its_places(layout):
    make, stored = SPARSE[layout]
    session = tt.torch.Session(lambda x: {"y": make(x).clone()})
    x = torch.zeros(4, 4)
    x[0, 1], x[2, 0] = 3.0, float("inf")

    def records_of(*debug_ops):
        found = watched(session, x, *debug_ops, node_name_regex_allowlist="^clone$")
        return {record.debug_op: bytes(record.data) for record in found}

    alone, both = records_of("DebugNumericSummary"), records_of("DebugNumericSummary", "DebugIdentity")
    assert list(alone) == ["DebugNumericSummary"]
    assert alone["DebugNumericSummary"] == both["DebugNumericSummary"]
    pill = np.frombuffer(alone["DebugNumericSummary"], np.float64)
    assert (pill[ELEMENTS], pill[POS_INF]) == (stored, 1)
    copied = np.frombuffer(both["DebugIdentity"], np.float32)
    assert sorted(copied[copied != 0]) == [6.0 if layout == "coo" else 3.0, float("inf")]
    assert "DebugIndices" in both, "which element each of them is"
    assert session.faults == 0


def test_summaries_on_another_device_are_the_same_and_come_in_one_copy(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    session = tt.torch.Session(step_of(model))
    x = torch.randn(2, 4)
    x[0, 0] = float("nan")
    ops = ("DebugNumericSummary(upper_bound=0.5)", "DebugNanCount")
    here = watched(session, x, *ops)
    model.zero_grad()

    copies = []
    collect_rows = DeviceSummaries.collect_rows
    monkeypatch.setattr(TorchTensors, "is_elsewhere", lambda self, tensor: True)
    monkeypatch.setattr(DeviceSummaries, "collect_rows", lambda self: copies.append(1) or collect_rows(self))
    there = watched(session, x, *ops)
    assert copies == [1]
    assert {record.watch_key for record in here} == {record.watch_key for record in there}
    expected, got = (
        summaries(record for record in records if record.debug_op == "DebugNumericSummary")
        for records in (here, there)
    )
    for key, row in expected.items():
        np.testing.assert_allclose(got[key], row, rtol=1e-9, err_msg=key)


def test_muted_summaries_of_another_device(monkeypatch):
    monkeypatch.setattr(TorchTensors, "is_elsewhere", lambda self, tensor: True)
    session = tt.torch.Session(lambda x: {"y": x + 1})
    records = watched(session, torch.tensor([1.0, float("inf")]), "DebugNumericSummary(mute_if_healthy=true)")
    assert {record.watch_key for record in records} == {
        "x:0:DebugNumericSummary",
        "add:0:DebugNumericSummary",
    }
    assert watched(session, torch.ones(2), "DebugNumericSummary(mute_if_healthy=true)") == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0]), (3,)),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.randn(3, dtype=torch.complex64).conj(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.ones(3, 4).t()[::2],
        lambda: torch.ones(3).to(torch.float8_e4m3fn),
        lambda: torch.tensor(5),
        lambda: torch.zeros(0, 2),
    ],
    ids=["sparse", "jagged", "conjugated", "meta", "strided", "float8", "scalar", "empty"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_kind_get_a_defined_answer(make):
    session = tt.torch.Session(lambda: {"y": make()})
    options = tt.RunOptions()
    watch_run(
        options,
        tt.WatchOptions(["DebugIdentity", "DebugNumericSummary", "DebugHash", "DebugNanCount"]),
        "memcbk:///odd",
    )
    with collect("odd") as records:
        session.run(None, options=options)
    assert session.faults == 0
    assert isinstance(list(records), list)


def test_a_watch_that_matches_nothing_is_said_with_the_closest_names(caplog):  # X15
    session = tt.torch.Session(step_of(nn.Linear(4, 3)))
    options = tt.RunOptions()
    add_debug_tensor_watch(options, "model/adddmm", debug_urls="memcbk:///of_this_test_alone")
    with collect("of_this_test_alone") as records:
        session.run(None, {"x": torch.ones(2, 4)}, options)
    assert list(records) == []
    assert "model/addmm" in caplog.text


def test_a_mistake_in_a_watch_is_an_error_before_the_step_runs():
    session = tt.torch.Session(step_of(nn.Linear(4, 3)))
    options = tt.RunOptions()
    options.debug_options.debug_tensor_watch_opts.append(
        tt.DebugTensorWatch("x", 0, ["DebugNothing"], ["memcbk:///x"])
    )
    with pytest.raises(tt.errors.InvalidArgumentError, match="DebugNothing"):
        session.run(None, {"x": torch.ones(2, 4)}, options)
    assert session.global_step == 0


def test_a_failure_at_the_end_of_a_watched_run_never_reaches_the_program(monkeypatch, caplog):
    def broken(self):
        raise RuntimeError("device lost")

    monkeypatch.setattr(watching.Watching, "_collect", broken)
    session = tt.torch.Session(lambda x: {"y": x + 1})
    assert watched(session, torch.ones(2), "DebugNumericSummary")
    assert session.global_step == 1
    assert session.faults == 1
    assert "device lost" in caplog.text


def tapped(tensors, *watches):
    """Show tensors to the watches of one run; the batches that were handed over."""
    options = tt.RunOptions()
    for position, (debug_op, lists) in enumerate(watches):
        watch_run(options, tt.WatchOptions([debug_op], **lists), f"memcbk:///{position}")
    batches = []
    sink = MemorySink(RunInfo(0, 0, 0), [])
    publisher = Publisher(options.debug_options, sink.info, lambda url, info: sink)
    publisher.hand_over_batch = lambda batch, positions: batches.append((positions, batch))
    publisher.hand_over = lambda record, positions: pytest.fail("not in a batch")
    run = watching.Watching(TENSORS, publisher, 0, {})
    for name, tensor in tensors.items():
        outputs = (tt.TensorSpec("float32", tuple(tensor.shape)),)
        run.tap(tt.Node(name, f"aten::{name}", outputs=outputs, device="/device:CPU:0"), 0, tensor)
    run.finish([], "stopped early")
    return batches, publisher


def test_summaries_leave_in_batches_that_share_keys_from_run_to_run():
    tensors = {f"n{number}": torch.full((number,), 2.0) for number in range(300)}
    runs = [tapped(tensors, ("DebugNumericSummary", {}))[0] for _ in range(2)]
    first, second = ([key for _, batch in run for key in batch.rows["key"].tolist()] for run in runs)
    assert first == second
    assert len({id(batch.table) for run in runs for _, batch in run}) == 1
    for batches in runs:
        assert len(batches) < 30
        assert {positions for positions, _ in batches} == {(0,)}
        records = [record for _, batch in batches for record in batch]
        assert [record.node_name for record in records] == list(tensors)
        assert [np.frombuffer(record.data)[[1, 14]].tolist() for record in records] == [
            [n, n] for n in range(300)
        ]
        stamps = [record.timestamp for record in records]
        assert stamps == sorted(stamps)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_each_sink_gets_the_summaries_it_asked_for_in_order(monkeypatch, elsewhere):
    monkeypatch.setattr(TorchTensors, "is_elsewhere", lambda self, tensor: elsewhere)
    tensors = {"a": torch.ones(2), "b": torch.tensor([[np.inf]]), "c": torch.ones(()), "d": torch.zeros(3)}
    muting = "DebugNumericSummary(mute_if_healthy=true)"
    batches, publisher = tapped(
        tensors,
        (muting, {}),
        (muting, {"node_name_regex_allowlist": "b|d"}),
        (muting, {"node_name_regex_allowlist": "a"}),
    )
    assert [(positions, [record.node_name for record in batch]) for positions, batch in batches] == [
        ((0,), ["b"]),
        ((1,), ["b"]),
    ]
    assert publisher._muted == [3, 1, 1]
    (record,) = batches[0][1]
    assert (record.dtype, record.shape, record.nbytes) == ("float64", (16,), 128)
    assert np.frombuffer(record.data)[[1, 7, 13, 14, 15]].tolist() == [1, 1, 2, 1, 1]


def test_a_gradient_is_as_it_was_made_unless_somebody_wrote_to_it_unseen():
    """Its summary is that of the op that made it; a hook of the parameter may change it where no op is seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2))
    session = tt.torch.Session(step_of(model))
    whole = {"gradients/model/0/weight:0": model[0].weight, "gradients/model/2/weight:0": model[2].weight}
    for spoiled in (False, False, True):
        if spoiled:
            model[0].weight.register_hook(lambda gradient: gradient.numpy().fill(np.inf))
        seen = summaries(watched(session, torch.randn(2, 4), "DebugNumericSummary"))
        for name, parameter in whole.items():
            assert seen[f"{name}:DebugNumericSummary"].tobytes() == summary_of(parameter.grad).tobytes()
            parameter.grad = None
        assert (seen["gradients/model/0/weight:0:DebugNumericSummary"][POSITIVE_INFINITIES] > 0) == spoiled


def summary_of(tensor):
    return DebugNumericSummary().apply(TENSORS.view_of(tensor))
