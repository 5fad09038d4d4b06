"""The right node, module, line and cause for every planted fault; silence for healthy programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.analyze.facts import RunFacts, facts_of_dump, module_of
from tensortap.analyze.filters import condition_of
from tensortap.analyze.first_bad import search
from tensortap.analyze.growth import learning_rate
from tensortap.analyze.health import Health
from tensortap.analyze.session import search_run, search_session
from tensortap.reader import SessionDir
from tensortap.records import Circumstances, Node, Record, RunInfo, TensorSpec, device_name
from tensortap.store import SessionStore
from tests.analyze import planted
from tests.analyze.planted import HEALTHY, PLANTS, train


@pytest.mark.parametrize("case", PLANTS, ids=lambda case: case.name)
def test_a_planted_fault_is_found(case, tmp_path):
    found = search_session(SessionDir(train(case, tmp_path))).first_bad
    assert found is not None
    if case.node is not None:
        assert found.node.name == case.node
        assert found.run == case.run
        assert found.phase == case.phase
        assert found.module == case.module
    assert found.cause.kind == case.kind, found.cause
    if case.line is not None:
        assert found.source is not None
        assert found.source.line == case.line
        assert found.source.file == __file__.replace("test_first_bad", "planted")
        assert found.source_text.endswith("# here")
    assert found.is_certain


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_program_is_left_in_peace(case, tmp_path):
    report = search_session(SessionDir(train(case, tmp_path)))
    assert report.first_bad is None


# --- what was recorded, and what not

BY_NAME = {case.name: case for case in PLANTS}


def first_bad_of(name, root, debug_ops):
    return search_session(SessionDir(train(BY_NAME[name], root, debug_ops))).first_bad


def test_values_prove_the_cause_by_an_element(tmp_path):
    found = first_bad_of("sqrt_of_negative", tmp_path, ["DebugNumericSummary", "DebugIdentity"])
    assert found.cause.proof == (
        "The first bad element is [0, 1]: nan, where model/first/addmm:0 is -0.6686.",
    )


def test_values_alone_are_enough(tmp_path):
    found = first_bad_of("where_and_sqrt_of_zero", tmp_path, ["DebugIdentity"])
    assert (found.node.name, found.cause.kind) == ("gradients/model/sqrt/div", "sqrt-gradient-at-zero")


def test_what_was_muted_was_good(tmp_path):
    found = first_bad_of("log_of_zero", tmp_path, ["DebugNumericSummary(mute_if_healthy=true)"])
    assert (found.node.name, found.cause.kind, found.is_certain) == ("model/log", "log-of-zero", True)
    assert "not recorded" in found.cause.sentence


def test_counts_of_nan_leave_infinities_open_and_the_answer_says_so(tmp_path):
    found = first_bad_of("sqrt_of_negative", tmp_path, ["DebugNanCount"])
    assert found.node.name == "model/sqrt"
    assert not found.is_certain
    assert found.cause.kind == "only-nan-counted"


def test_an_input_that_was_not_recorded_is_unknown_and_the_answer_says_so(tmp_path, monkeypatch):
    only_roots = lambda ops: (
        lambda fetches, feeds: tt.WatchOptions(list(ops), node_name_regex_allowlist=".*sqrt.*")
    )
    monkeypatch.setattr(planted, "watch", only_roots)
    found = first_bad_of("sqrt_of_negative", tmp_path, ["DebugNumericSummary"])
    assert found.node.name == "model/sqrt"
    assert not found.is_certain
    assert found.inputs[0].status == "unknown"
    assert "model/first/addmm:0 was not recorded" in found.cause.sentence


# --- what the user calls bad


def missing_values_filled(x):
    x[0, 0] = float("nan")
    return torch.nan_to_num(x)


def missing_values_chosen(x):
    x[1, 1] = float("nan")
    return torch.where(torch.isnan(x), 0.0, x)


def missing_values_written_over(x):
    x[1, 1] = float("nan")
    x[torch.isnan(x)] = 0.0
    return x


def memory_written_before_it_is_read(x):
    return torch.full((4, 3), float("nan")).copy_(x)


@pytest.mark.parametrize(
    "prepare",
    [
        missing_values_filled,
        missing_values_chosen,
        missing_values_written_over,
        memory_written_before_it_is_read,
    ],
)
def test_bad_memory_that_is_repaired_before_it_is_used_is_no_alarm(prepare, tmp_path):
    """What is written into a part of a tensor is read by the tensor's own name, if at all."""
    model = torch.nn.Linear(3, 1)
    hook = tt.DumpingDebugHook(
        tmp_path, lambda fetches, feeds: tt.WatchOptions("DebugNumericSummary", keep_bad=3)
    )
    with tt.torch.monitor(model, hooks=[hook]) as m, m.run():
        model(prepare(torch.ones(4, 3))).mean().backward()
    report = search_session(SessionDir(tmp_path))
    assert report.first_bad is None
    assert report.reports[0].contained


def test_a_bad_checkpoint_is_told_as_such(tmp_path):
    model = torch.nn.Linear(3, 2)
    torch.save({**model.state_dict(), "bias": torch.tensor([1.0, float("nan")])}, tmp_path / "checkpoint.pt")
    hook = tt.DumpingDebugHook(
        tmp_path / "dumps", lambda fetches, feeds: tt.WatchOptions("DebugNumericSummary")
    )
    with tt.torch.monitor(model, hooks=[hook]) as m, m.run():
        model.load_state_dict(torch.load(tmp_path / "checkpoint.pt"))
        model(torch.ones(4, 3)).mean().backward()
    found = search_session(SessionDir(tmp_path / "dumps")).first_bad
    assert found.cause.kind == "bad-input"
    assert "which was loaded" in found.cause.sentence
    assert "load_state_dict" in found.source_text


def test_nodes_of_an_optimizer_without_a_path_have_no_module():
    assert module_of(Node("optimizer/SGD/mul", "aten::mul")) is None
    assert module_of(Node("gradients/mul", "?")) is None


def test_exclude(tmp_path):
    session = SessionDir(train(BY_NAME["sqrt_of_negative"], tmp_path))
    found = search_session(session, exclude="model/sqrt").first_bad
    assert found.node.name == "model/last/addmm"
    assert found.inputs[1].status == "intended"


def test_a_condition_finds_the_first_node_that_exceeds_a_limit(tmp_path):
    session = SessionDir(train(BY_NAME["exploding_learning_rate"], tmp_path))
    found = search_session(session, condition=condition_of("magnitude > 1e10")).first_bad
    assert found.run == 2
    assert found.cause.kind == "filter"
    assert found.health.magnitude > 1e10
    assert all(each.health.magnitude <= 1e10 for each in found.inputs)


# --- over runs and ranks


def test_a_growing_value_is_told_with_the_learning_rate(tmp_path):
    found = search_session(SessionDir(train(BY_NAME["exploding_learning_rate"], tmp_path))).first_bad
    assert "had been growing" in found.cause.sentence
    assert "(it is 50)" in found.cause.advice


def test_the_learning_rate_shows_in_the_updates_whatever_the_optimizer_is_called(tmp_path):
    class Mine(torch.optim.SGD):
        pass

    for foreach in (False, True):
        model = planted.Net()
        optimizer = Mine(model.parameters(), lr=0.25, foreach=foreach)
        program = planted.trained(model, planted.squares, planted.batches(1), optimizer)
        session = tt.torch.Session(program.step, modules=program.modules, optimizers=program.optimizers)
        root = tmp_path / str(foreach)
        with tt.DumpingDebugWrapperSession(
            session, root, watch_fn=planted.watch(["DebugNumericSummary"])
        ) as wrapped:
            wrapped.run(None, program.feeds[0])
        facts = facts_of_dump(SessionDir(root).run(0))
        facts.circumstances = Circumstances(engine="torch")  # which do not tell it
        assert learning_rate(facts) == 0.25


def test_a_bad_parameter_is_traced_to_the_run_that_made_it_so(tmp_path):
    session = SessionDir(train(BY_NAME["sqrt_of_negative"], tmp_path))
    found = search_run(session.run(2), session).first_bad
    assert found.phase == "parameter"
    assert (found.origin.run, found.origin.node) == (0, "model/sqrt")


def test_a_parameter_that_was_changed_between_runs(tmp_path):
    torch.manual_seed(0)
    model = planted.Net()
    program = planted.trained(model, planted.squares, planted.batches())
    session = tt.torch.Session(program.step, modules=program.modules, optimizers=program.optimizers)
    with tt.DumpingDebugWrapperSession(
        session, tmp_path, watch_fn=planted.watch(["DebugNumericSummary"])
    ) as wrapped:
        wrapped.run(None, program.feeds[0])
        with torch.no_grad():
            model.last.weight[0, 0] = torch.nan
        wrapped.run(None, program.feeds[1])
    found = search_session(SessionDir(tmp_path)).first_bad
    assert (found.node.name, found.run) == ("model/last/weight", 1)
    assert found.origin.run is None
    assert "changed between the runs" in found.origin.sentence


def test_overflow_that_a_gradient_scaler_catches_is_no_alarm(tmp_path):
    model = planted.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    program = planted.Program(step, {"model": model}, {"optimizer": optimizer}, planted.batches(2))
    report = search_session(SessionDir(train(planted.Plant(lambda: program), tmp_path)))
    assert report.first_bad is None
    assert "gradient scaler" in report.notices[0]
    assert report.reports[0].contained


def write_run(store, info, healths, nodes=(), circumstances=None):
    """A run as a rank would write it; without nodes it dies before it stores its graph."""
    device = device_name("cpu", rank=info.task)
    run = store.new_run(info)
    for place, (tensor, value) in enumerate(healths.items()):
        node, slot = tensor.rsplit(":", 1)
        pill = np.array([*Health.of_value(np.asarray(value))[:14], *np.shape(value)])
        shape = (len(pill),)
        run.write(
            Record(
                node, int(slot), "DebugNumericSummary", device, info.timestamp + place, "float64", shape, pill
            )
        )
    if nodes:
        run.finish({device: nodes}, {}, circumstances=circumstances)
    return run


def graph(op_type="aten::log"):
    spec = (TensorSpec("float32", (2,)),)
    return [
        Node("x", "Placeholder", outputs=spec),
        Node("f", op_type, inputs=("x:0",), outputs=spec),
    ]


GOOD, BAD = {"x:0": [1.0, 2.0], "f:0": [0.0, 0.7]}, {"x:0": [0.0, 2.0], "f:0": [-np.inf, 0.7]}


def test_what_a_checkpointed_module_does_again_is_no_other_fault():
    x, y = np.array([4.0, -1.0]), np.array([1.4, np.nan])
    nodes = {
        name: Node(name, "aten::log", inputs=("x:0",)) for name in ("log", "recompute/log", "recompute/log_1")
    }
    healths = {"x:0": Health.of_value(x)} | {f"{name}:0": Health.of_value(y) for name in nodes}
    report = search(RunFacts(RunInfo(0, 7, 1), {"x": Node("x", "Placeholder"), **nodes}, healths))
    assert [each.node.name for each in report.findings] == ["log", "recompute/log_1"]


def test_the_rank_that_went_bad_first_is_named(tmp_path):
    """The others only got it: their operation took nothing bad and received the value."""
    stores = [SessionStore(tmp_path) for _ in range(3)]
    for rank, store in enumerate(stores):
        write_run(store, RunInfo(0, 10, 100, rank), GOOD, graph())
        received = graph("c10d::allreduce_")
        made = graph()
        # Rank 2 made it, though by its clock later than rank 0 noticed.
        info = RunInfo(1, 11, 200 + 50 * rank, rank)
        write_run(store, info, BAD if rank != 1 else GOOD, made if rank == 2 else received)
        store.close()
    found = search_session(SessionDir(tmp_path)).first_bad
    assert (found.rank, found.run, found.step, found.cause.kind) == (2, 1, 11, "log-of-zero")
    assert search_session(SessionDir(tmp_path), task=0).first_bad.cause.kind == "received"


@pytest.mark.parametrize(("made_at", "rank"), [(800, 0), (1000, 1)])
def test_who_sent_a_bad_value_may_have_counted_more_steps(tmp_path, made_at, rank):
    """Such as the rank that trains what others act by; what it makes later than they receive is not what they got."""
    stores = [SessionStore(tmp_path) for _ in range(2)]
    for run in range(3):
        write_run(stores[0], RunInfo(run, run, 100 + run, 0), GOOD, graph())
    write_run(stores[0], RunInfo(3, 3, made_at, 0), BAD, graph())
    write_run(stores[1], RunInfo(0, 0, 900, 1), BAD, graph("c10d::broadcast_"))
    for store in stores:
        store.close()
    found = search_session(SessionDir(tmp_path)).first_bad
    assert (found.rank, found.cause.kind) == (rank, ("log-of-zero", "received")[rank])
    assert [each.rank for each in found.arrivals] == [1 - rank]


@pytest.mark.parametrize(("began", "rank"), [(900, 1), (50, 0)])
def test_a_program_without_steps_is_compared_with_a_rank_by_the_clock(tmp_path, began, rank):
    """Such as the one that has started the ranks, and loads what they have trained when they are done."""
    stores = [SessionStore(tmp_path) for _ in range(2)]
    whole = Circumstances(is_preparation=True, counts_steps=False)
    bad = {"x:0": [-1.0, 2.0], "f:0": [np.nan, 0.7]}
    write_run(stores[0], RunInfo(0, 0, began, 0), bad, graph(), whole)
    for run, healths in enumerate([GOOD, bad]):
        write_run(stores[1], RunInfo(run, 10 + run, 100 + 100 * run, 1), healths, graph())
    for store in stores:
        store.close()
    assert search_session(SessionDir(tmp_path)).first_bad.rank == rank


def test_a_run_that_died_borrows_the_graph_of_another(tmp_path):
    with SessionStore(tmp_path) as store:
        write_run(store, RunInfo(0, 0, 100), GOOD, graph())
        write_run(store, RunInfo(1, 1, 200), BAD)
    report = search_session(SessionDir(tmp_path))
    assert (report.first_bad.run, report.first_bad.cause.kind) == (1, "log-of-zero")
    assert any("graph" in each for each in report.notices)


def test_without_any_graph_the_first_bad_value_in_time_is_named(tmp_path):
    with SessionStore(tmp_path) as store:
        write_run(store, RunInfo(0, 0, 100), BAD)
    found = search_session(SessionDir(tmp_path)).first_bad
    assert (found.node.name, found.cause.kind, found.is_certain) == ("f", "no-graph", False)


def test_a_damaged_run_is_left_out_and_named(tmp_path):
    with SessionStore(tmp_path) as store:
        write_run(store, RunInfo(0, 0, 100), GOOD, graph())
        write_run(store, RunInfo(1, 1, 200), BAD, graph())
    for index in (tmp_path / "run_200_1").glob("*.index"):
        index.write_bytes(b"garbage")
    report = search_session(SessionDir(tmp_path))
    assert report.first_bad is None
    assert any("cannot be read" in each for each in report.notices)


def test_what_was_dropped_is_said(tmp_path):
    with SessionStore(tmp_path) as store:
        run = write_run(store, RunInfo(0, 0, 100), GOOD)
        run.finish({device_name("cpu"): graph()}, {"written": 2, "dropped": 7})
    report = search_session(SessionDir(tmp_path))
    assert report.first_bad is None
    assert any("7 records were dropped" in each for each in report.notices)


def test_a_search_can_be_about_one_run_and_leaves_out_what_has_been_cleared(tmp_path):
    session = SessionDir(train(BY_NAME["sqrt_of_negative"], tmp_path))
    whole = search_session(session)
    bad = whole.first_bad.run_name
    others = [run.name for run in session.runs if run.name != bad]
    assert search_session(session, only=bad).first_bad == whole.first_bad
    assert [report.name for report in search_session(session, only=others[0]).reports] == others[:1]
    assert bad not in {report.name for report in search_session(session, cleared={bad}).reports}
