"""Timelines keep the rules of the trace format, whatever the step; and what our own facts add to them."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.step_stats_pb2 import StepStats

from tensortap.profile.drawing import FIRST_TID
from tensortap.profile.executions import OP_TIMES
from tensortap.profile.timeline import Timeline
from tensortap.records import Frame, Node
from tensortap.seam.graph import Graph
from tensortap.seam.step_facts import PHASES, OpFacts, StepFacts, TensorLife
from tensortap.store.trace_file import TraceTooLargeError, read_trace
from tests.profile.trace_rules import check_trace

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
ZERO = 1_700_000_000_000_000_000

NAMES = st.sampled_from(["x", "model/fc/addmm", "model/fc/relu", "loss", "gradients/loss/neg", "RecvTensor"])
TENSORS = st.one_of(NAMES, NAMES.map(lambda name: f"{name}:1"), NAMES.map(lambda name: f"{name}/_7"))
LABELS = st.one_of(
    st.builds(lambda name, inputs: f"{name} = Op({', '.join(inputs)})", NAMES, st.lists(TENSORS, max_size=3)),
    st.text(max_size=10),
)


@st.composite
def step_stats(draw):
    """Anything that may be in a message: loops, empty ops, overlaps, several devices, odd labels."""
    stats = StepStats()
    devices = draw(
        st.lists(st.sampled_from([CPU, "/job:a/gpu:0", "/gpu:0/stream:all", "/memcpy"]), unique=True)
    )
    for name in devices:
        device = stats.dev_stats.add(device=name)
        for _ in range(draw(st.integers(0, 8))):
            start, length = draw(st.integers(0, 50_000)), draw(st.integers(0, 20_000))
            node = device.node_stats.add(
                node_name=draw(NAMES),
                timeline_label=draw(LABELS),
                all_start_micros=start // 1000,
                all_end_rel_micros=(start + length) // 1000 - start // 1000,
                thread_id=draw(st.integers(0, 2)),
            )
            if draw(st.booleans()):
                node.all_start_nanos, node.all_end_rel_nanos = start, length
            for slot in range(draw(st.integers(0, 2))):
                description = node.output.add(slot=slot).tensor_description
                description.allocation_description.requested_bytes = draw(st.sampled_from([0, 4, 2**40]))
                description.allocation_description.allocator_name = draw(st.sampled_from(["cpu", "gpu", ""]))
    return stats


@st.composite
def step_facts(draw):
    modules = st.sampled_from(["", "model", "model/fc", "model/0/attn", "optimizer/AdamW"])
    phases = st.sampled_from([*PHASES, ""])
    nodes = draw(st.lists(NAMES, unique=True))
    lives = st.builds(
        TensorLife,
        TENSORS,
        st.sampled_from(["cpu", "gpu"]),
        st.integers(0, 2**40),
        st.integers(0, 70_000),
        st.one_of(st.none(), st.integers(0, 70_000)),
    )
    return StepFacts(
        step=draw(st.one_of(st.none(), st.integers(0, 10))),
        ops={node: OpFacts(node, "Op", draw(modules), draw(phases), "train.py", 3) for node in nodes},
        lives=tuple(draw(st.lists(lives, max_size=6))),
        start_nanos=draw(st.integers(0, 60_000)),
        end_nanos=draw(st.integers(0, 90_000)),
    )


@settings(deadline=None)
@given(step_stats(), st.booleans(), st.booleans(), st.sampled_from(OP_TIMES))
def test_any_message_makes_a_trace_that_keeps_the_rules(stats, dataflow, memory, op_time):
    """G11: and the message may be used again."""
    before = stats.SerializeToString()
    text = Timeline(stats).generate_chrome_trace_format(dataflow, memory, op_time)
    check_trace(json.loads(text))
    assert stats.SerializeToString() == before


@settings(deadline=None)
@given(step_stats(), step_facts(), st.booleans(), st.booleans(), st.sampled_from(OP_TIMES))
def test_so_it_does_with_facts(stats, facts, dataflow, memory, op_time):
    trace = json.loads(Timeline(stats, facts=facts).generate_chrome_trace_format(dataflow, memory, op_time))
    check_trace(trace, nested=True)
    ops = [event for event in trace["traceEvents"] if event.get("cat") == "Op"]
    assert len(ops) == sum(len(device.node_stats) for device in stats.dev_stats)
    assert all(math.isclose(event["ts"], round(event["ts"], 3)) for event in ops)


def add(stats, name, label, start, length, *outputs, thread=1):
    """One op, in nanoseconds after the start; outputs are sizes."""
    if not stats.dev_stats:
        stats.dev_stats.add(device=CPU, thread_names={1: "main", 2: "autograd"})
    node = stats.dev_stats[0].node_stats.add(
        node_name=name,
        timeline_label=f"{name} = {label}",
        all_start_micros=(ZERO + start) // 1000,
        all_start_nanos=ZERO + start,
        all_end_rel_micros=(ZERO + start + length) // 1000 - (ZERO + start) // 1000,
        all_end_rel_nanos=length,
        thread_id=thread,
    )
    for slot, nbytes in enumerate(outputs):
        description = node.output.add(slot=slot).tensor_description
        description.dtype = 1
        description.shape.dim.add(size=nbytes // 4)
        description.allocation_description.requested_bytes = nbytes
        description.allocation_description.allocator_name = "cpu"


@pytest.fixture
def step():
    """Two layers forward, the second one's gradient in another thread, one weight updated."""
    stats = StepStats()
    add(stats, "model/0/addmm", "aten::addmm(x)", 1_000, 2_500, 400)
    add(stats, "model/0/relu", "aten::relu(model/0/addmm)", 4_000, 1_000, 400)
    add(stats, "model/1/addmm", "aten::addmm(model/0/relu)", 6_000, 2_000, 40)
    add(stats, "loss", "aten::mean(model/1/addmm)", 9_000, 500, 4)
    add(stats, "gradients/model/1/addmm/mm", "aten::mm(loss, model/0/relu)", 10_000, 2_000, 800, thread=2)
    add(
        stats,
        "optimizer/SGD/model/1/weight/add_",
        "aten::add_(gradients/model/1/addmm/mm)",
        13_000,
        1_000,
    )
    here = (Frame("train.py", 12, "step"),)
    nodes = [
        Node("model/0/addmm", "aten::addmm", stack=here),
        Node("model/0/relu", "aten::relu", stack=here),
        Node("model/1/addmm", "aten::addmm", stack=here),
        Node("loss", "aten::mean"),
        Node("gradients/model/1/addmm/mm", "aten::mm", forward="model/1/addmm", stack=here),
        Node("optimizer/SGD/model/1/weight/add_", "aten::add_"),
    ]
    return stats, nodes


def slices(trace, lane):
    return [
        (event["cat"], event["name"], event["ts"], event["dur"])
        for event in trace
        if event["ph"] == "X" and (event["pid"], event["tid"]) == (1, FIRST_TID + lane)
    ]


def test_ops_lie_within_their_modules_phase_and_step(step):
    stats, nodes = step
    trace = Timeline(stats, facts=StepFacts.of(nodes, step=7)).analyze_step_stats().chrome_trace
    assert slices(trace, 0) == [
        ("Step", "step 7", 0.0, 13.0),
        ("Phase", "forward", 0.0, 8.5),
        ("Module", "model", 0.0, 7.0),
        ("Module", "model/0", 0.0, 4.0),
        ("Module", "model/1", 5.0, 2.0),
        ("Phase", "optimizer", 12.0, 1.0),
        ("Module", "model", 12.0, 1.0),
        ("Module", "model/1", 12.0, 1.0),
        ("Op", "aten::addmm", 0.0, 2.5),
        ("Op", "aten::relu", 3.0, 1.0),
        ("Op", "aten::addmm", 5.0, 2.0),
        ("Op", "aten::mean", 8.0, 0.5),
        ("Op", "aten::add_", 12.0, 1.0),
    ]
    assert slices(trace, 1) == [
        ("Phase", "backward", 9.0, 2.0),
        ("Module", "model", 9.0, 2.0),
        ("Module", "model/1", 9.0, 2.0),
        ("Op", "aten::mm", 9.0, 2.0),
    ]
    names = [event["args"]["name"] for event in trace if event["name"] == "thread_name"]
    assert names == ["main", "autograd"]
    check_trace({"traceEvents": trace.events}, nested=True)


def test_ops_tell_where_they_come_from(step):
    stats, nodes = step
    trace = Timeline(stats, facts=StepFacts.of(nodes)).analyze_step_stats().chrome_trace
    (gradient,) = (event for event in trace if event["name"] == "aten::mm")
    assert gradient["args"] == {
        "name": "gradients/model/1/addmm/mm",
        "op": "aten::mm",
        "input0": "loss",
        "input1": "model/0/relu",
        "module": "model/1",
        "phase": "backward",
        "source": "train.py:12 in step",
        "outputs": "float32[200]",
        "bytes": 800,
    }


def test_arrows_within_a_lane_are_left_out_between_neighbours_only(step):
    """G7 leaves them all out; with one thread there would be none."""
    stats, nodes = step
    trace = Timeline(stats, facts=StepFacts.of(nodes)).analyze_step_stats().chrome_trace
    arrows = [event["name"] for event in trace if event["ph"] == "s"]
    # loss -> its gradient and the gradient -> its update cross threads; model/0/relu is used by the gradient, too.
    assert arrows == ["loss", "model/0/relu", "gradients/model/1/addmm/mm"]
    # They leave from inside the op, else viewers tie them to the module around it.
    (leaves,) = (event["ts"] for event in trace if event["ph"] == "s" and event["name"] == "loss")
    assert leaves == pytest.approx(8.499)


def test_a_graph_of_ours_does_for_facts(step):
    stats, nodes = step
    graph = Graph()
    graph.record(nodes)
    trace = Timeline(stats, graph).analyze_step_stats().chrome_trace
    assert ("Phase", "backward", 9.0, 2.0) in slices(trace, 1)
    assert Timeline(stats, object()).analyze_step_stats().chrome_trace.facts is None


def test_lifetimes_follow_the_dataflow_unless_the_allocator_told_them(step):
    """G8, G9."""
    stats, nodes = step
    analysis = Timeline(stats, facts=StepFacts.of(nodes)).analyze_step_stats()
    peak = analysis.allocator_maximums["cpu"]
    # The gradient is made while the activation it needs and the loss are alive.
    assert (peak.timestamp, peak.num_bytes) == (9.0, 400 + 4 + 800)
    assert peak.tensors == {"model/0/relu", "loss", "gradients/model/1/addmm/mm"}

    lives = (
        TensorLife("weight:0", "cpu", 10_000, 0, None),
        TensorLife("model/0/addmm:0", "cpu", 400, ZERO + 1_500, ZERO + 9_000),
        TensorLife("loss:temporary", "cpu", 64, ZERO + 9_100, ZERO + 9_200),
    )
    facts = StepFacts(ops=StepFacts.of(nodes).ops, lives=lives)
    analysis = Timeline(stats, facts=facts).analyze_step_stats()
    assert analysis.allocator_maximums["cpu"] == (0.5, 10_400, {"weight", "model/0/addmm"})
    counters = [(e["ts"], e["args"]["cpu"]) for e in analysis.chrome_trace if e["ph"] == "C"]
    assert counters == [(0.0, 10_000), (0.5, 10_400), (8.0, 10_000), (8.1, 10_064), (8.2, 10_000), (13.0, 0)]
    check_trace({"traceEvents": analysis.chrome_trace.events}, nested=True)


def test_a_view_keeps_what_it_shows(step):
    stats, nodes = step
    add(stats, "model/0/view", "aten::view(model/0/addmm)", 4_500, 100, 0)
    add(stats, "model/0/t", "aten::t(model/0/view)", 4_700, 100, 0)
    add(stats, "late", "aten::neg(model/0/t)", 14_500, 1_000, 8)
    ends = lambda facts: {
        event["name"]: event["ts"]
        for event in Timeline(stats, facts=facts).analyze_step_stats().chrome_trace
        if event["ph"] == "D"
    }
    assert ends(StepFacts.of(nodes))["model/0/addmm"] == pytest.approx(14.499)
    assert (
        ends(None)["model/0/addmm"] == ZERO // 1000 + 4_999 // 1000
    )  # as TensorFlow has it: its last consumer


def test_ops_of_which_nothing_is_known_do_not_split_a_module(step):
    stats, nodes = step
    add(stats, "aten::to", "aten::to()", 5_100, 100)
    trace = Timeline(stats, facts=StepFacts.of(nodes)).analyze_step_stats().chrome_trace
    assert [each[1] for each in slices(trace, 0)].count("model") == 2  # the forward pass and the update
    check_trace({"traceEvents": trace.events}, nested=True)


def test_the_peak_and_its_tensors_stand_in_the_trace(step, tmp_path):
    stats, nodes = step
    Timeline(stats, facts=StepFacts.of(nodes, step=3, rank=2)).write(tmp_path / "timeline-3.json")
    facts = read_trace(tmp_path / "timeline-3.json").facts
    assert facts["peaks"]["cpu"]["tensors"] == [
        ["gradients/model/1/addmm/mm", 800],
        ["model/0/relu", 400],
        ["loss", 4],
    ]
    assert (facts["step"], facts["rank"], facts["zero_nanos"]) == (3, 2, ZERO + 1_000)
    assert facts["host"]
    assert facts["pid"] > 0


def test_written_events_are_the_same_and_compressed_if_the_name_says_so(step, tmp_path):
    """B11, but for the indentation."""
    stats, nodes = step
    timeline = Timeline(stats, facts=StepFacts.of(nodes, step=3))
    expected = json.loads(timeline.generate_chrome_trace_format(show_memory=True))
    written = timeline.write(tmp_path / "timeline-3.json", show_memory=True)
    text = written.path.read_text()
    assert json.loads(text) == expected
    assert written.nbytes == len(text)
    assert len(text.splitlines()) == len(expected["traceEvents"]) + 4  # an event per line
    zipped = timeline.write(tmp_path / "timeline-3.json.gz", show_memory=True)
    assert gzip.decompress(zipped.path.read_bytes()).decode() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timeline-3.json", "timeline-3.json.gz"]


def test_what_does_not_fit_is_left_out_whole_and_said(step, tmp_path):
    stats, nodes = step
    timeline = Timeline(stats, facts=StepFacts.of(nodes, step=3))
    path = tmp_path / "timeline-3.json"
    whole = timeline.write(path, show_memory=True).nbytes
    said = []
    for limit in range(whole, 2_200, -200):
        written = timeline.write(path, show_memory=True, max_bytes=limit)
        trace = json.loads(path.read_text())
        check_trace(trace, nested=True)
        assert written.nbytes <= limit
        assert tuple(trace["otherData"]["tensortap"].get("left_out", ())) == written.left_out
        said.append(written.left_out)
    assert said[0] == ()
    assert ("dataflow",) in said
    assert ("dataflow", "memory") in said
    assert said[-1][2] == "9 slices of at most 2.0 µs"
    path.unlink()
    with pytest.raises(TraceTooLargeError, match="fits into 100 bytes"):
        timeline.write(path, max_bytes=100)
    assert list(tmp_path.iterdir()) == []


def test_calls_within_calls_nest(step):
    stats = StepStats()
    add(stats, "a", "aten::zeros_like()", 0, 5_000)
    add(stats, "b", "aten::empty_like()", 1_000, 1_000)
    add(stats, "c", "aten::copy_()", 4_000, 3_000)  # overlaps otherwise: another lane
    trace = Timeline(stats, facts=StepFacts()).analyze_step_stats().chrome_trace
    lanes = {event["args"]["name"]: event["tid"] for event in trace if event.get("cat") == "Op"}
    assert lanes == {"a": FIRST_TID, "b": FIRST_TID, "c": FIRST_TID + 1}
    names = [event["args"]["name"] for event in trace if event["name"] == "thread_name"]
    assert names == ["main", "main (2)"]
