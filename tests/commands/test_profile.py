"""`tensortap profile` and `tensortap trace merge`, as a user types them, on traces that `Timeline` wrote."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.step_stats_pb2 import StepStats

from tensortap.commands import main
from tensortap.profile.timeline import Timeline
from tensortap.records import Frame, Node
from tensortap.seam.step_facts import StepFacts
from tests.profile.trace_rules import check_trace

ZERO = 1_700_000_000_000_000_000
MS = 1_000_000

OPS = [  # node, op, inputs, start and duration in ms, bytes, forward node, line
    ("model/0/addmm", "aten::addmm", "x", 0, 4, 2048, None, 12),
    ("model/1/addmm", "aten::addmm", "model/0/addmm", 5, 2, 1024, None, 12),
    ("loss", "aten::mean", "model/1/addmm", 8, 1, 4, None, 30),
    ("gradients/model/1/addmm/mm", "aten::mm", "loss, model/0/addmm", 10, 6, 4096, "model/1/addmm", 12),
    ("optimizer/SGD/model/1/weight/add_", "aten::add_", "gradients/model/1/addmm/mm", 17, 3, 0, None, 31),
]


def step_stats(start_nanos=ZERO, rank=0, slower=1):
    stats = StepStats()
    device = stats.dev_stats.add(device=f"/job:localhost/replica:0/task:{rank}/device:CPU:0")
    for name, op, inputs, start, length, nbytes, _, _ in OPS:
        begins = start_nanos + start * MS * slower
        node = device.node_stats.add(
            node_name=name,
            timeline_label=f"{name} = {op}({inputs})",
            all_start_micros=begins // 1000,
            all_start_nanos=begins,
            all_end_rel_micros=length * slower * 1000,
            all_end_rel_nanos=length * slower * MS,
        )
        if nbytes:
            allocation = node.output.add().tensor_description.allocation_description
            allocation.requested_bytes, allocation.allocator_name = nbytes, "cpu"
    return stats


def write(path, step=100, rank=0, start_nanos=ZERO, slower=1, **options):
    """A trace as ProfilerHook writes it."""
    path.parent.mkdir(exist_ok=True)
    nodes = [
        Node(name, op, forward=forward, stack=(Frame("train.py", line, "step"),))
        for name, op, _, _, _, _, forward, line in OPS
    ]
    facts = StepFacts.of(nodes, step=step, rank=rank)
    return Timeline(step_stats(start_nanos, rank, slower), facts=facts).write(path, **options).path


def write_original(path):
    """A trace as TensorFlow writes it: the same text, see tests/profile/test_timeline_tensorflow.py."""
    path.write_text(Timeline(step_stats()).generate_chrome_trace_format(show_memory=True))
    return path


def run(capsys, *arguments):
    code = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_profile_of_one_step(tmp_path, capsys):
    write(tmp_path / "timeline-100.json")
    code, out, err = run(capsys, "profile", tmp_path)
    assert (code, err) == (0, "")
    assert (
        out
        == """\
step 100: 20 ms, ops running 80% of it; 5 ops

phase      time  share  ops
forward    7 ms  43.8%    3
backward   6 ms  37.5%    1
optimizer  3 ms  18.8%    1

time  share  calls  op           line
6 ms  37.5%      2  aten::addmm  train.py:12 in step
6 ms  37.5%      1  aten::mm     train.py:12 in step
3 ms  18.8%      1  aten::add_   train.py:31 in step
1 ms   6.2%      1  aten::mean   train.py:30 in step

 time  share  forward  backward  optimizer  with inner  module
11 ms  68.8%     2 ms      6 ms       3 ms       11 ms  model/1
 4 ms  25.0%     4 ms         -          -        4 ms  model/0

 time  share  calls  line
12 ms  75.0%      3  train.py:12 in step
 3 ms  18.8%      1  train.py:31 in step
 1 ms   6.2%      1  train.py:30 in step

memory  share  calls  op
4.0 kB  57.1%      1  aten::mm
3.0 kB  42.8%      2  aten::addmm
   4 B   0.1%      1  aten::mean

peak of cpu, estimated: 6.0 kB in 3 tensors, 10 ms after the start of step 100 on rank 0
  size  share  tensor
4.0 kB  66.6%  gradients/model/1/addmm/mm
2.0 kB  33.3%  model/0/addmm
   4 B   0.1%  loss
"""
    )


def test_several_steps_are_averaged(tmp_path, capsys):
    write(tmp_path / "timeline-9.json")
    write(tmp_path / "timeline-10.json.gz", step=10, slower=3)
    _, out, _ = run(capsys, "profile", tmp_path, "--by", "op", "--top", "1")
    assert out.splitlines() == [
        "steps 10, 100, each: 40 ms, ops running 80% of it; 5 ops",
        "",
        " time  share  calls  op           line",
        "12 ms  37.5%      2  aten::addmm  train.py:12 in step",
        "… and 3 more ops",
    ]


def test_the_users_own_line_stands_beside_an_op_of_a_package(tmp_path, capsys):
    package = Frame("/usr/lib/python3/site-packages/zoo/model.py", 7, "Zoo.forward")
    nodes = [
        Node("model/0/addmm", "aten::addmm", stack=(Frame("train.py", 3, "main"), package)),
        Node("model/1/addmm", "aten::addmm", stack=(Frame("train.py", 5, "main"), package)),
        Node("loss", "aten::mean", stack=(package,)),
    ]
    Timeline(step_stats(), facts=StepFacts.of(nodes, step=1)).write(tmp_path / "timeline-1.json")
    _, out, _ = run(capsys, "profile", tmp_path, "--by", "op")
    assert "aten::addmm  train.py:3 in main and 1 more\n" in out
    _, out, _ = run(capsys, "profile", tmp_path, "--by", "line")
    assert [line.partition("      1  ")[2] for line in out.splitlines()[3:6]] == [
        "train.py:3 in main",
        "train.py:5 in main",
        "zoo/model.py:7 in Zoo.forward",
    ]
    _, out, _ = run(capsys, "profile", tmp_path, "--by", "node", "--json")
    rows = {row["name"]: row["lines"] for row in json.loads(out)["node"]}
    assert rows["model/0/addmm"] == {"train.py:3 in main": 4000}


def test_json(tmp_path, capsys):
    write(tmp_path / "rank0" / "timeline-100.json", rank=0)
    write(tmp_path / "rank1" / "timeline-100.json", rank=1, slower=2)
    code, out, _ = run(capsys, "profile", tmp_path, "--json", "--top", "2")
    found = json.loads(out)
    assert code == 0
    assert [(trace["step"], trace["rank"], trace["ops"]) for trace in found["traces"]] == [
        (100, 0, 5),
        (100, 1, 5),
    ]
    assert found["micros"] == 30_000
    assert [(row["name"], row["micros"]) for row in found["phase"]] == [
        ("forward", 10500),
        ("backward", 9000),
    ]
    assert found["module"][0]["micros_with_inner"] == 16_500
    assert found["peak"][0]["tensors"][0] == {"tensor": "gradients/model/1/addmm/mm", "bytes": 4096}
    assert "node" not in found
    _, out, _ = run(capsys, "profile", tmp_path, "--by", "phase")
    assert out.startswith("step 100 of ranks 0, 1, each: 30 ms")


def test_traces_of_tensorflow_as_far_as_they_go(tmp_path, capsys):
    write_original(tmp_path / "timeline-7.json")
    code, out, _ = run(capsys, "profile", tmp_path)
    assert code == 0
    assert out.startswith("step 7: 20 ms, ops running 80% of it; 5 ops")
    assert "aten::addmm" in out
    assert "gradients/model/1/addmm\n" in out  # the name scope
    assert "peak of cpu, estimated: 6.0 kB in 3 tensors, 10 ms after" in out
    assert "phase" not in out
    _, _, err = run(capsys, "profile", tmp_path, "--by", "line")
    assert err == (
        "note: These traces tell nothing of lines; ProfilerHook and tensortap run --profile write traces that do.\n"
    )


def test_a_trace_that_was_cut_says_so(tmp_path, capsys):
    whole = write(tmp_path / "timeline-1.json")
    write(whole, max_bytes=whole.stat().st_size - 1)
    _, _, err = run(capsys, "profile", tmp_path)
    assert "was cut to its size limit; it lacks dataflow" in err


def test_merge_puts_ranks_on_one_clock(tmp_path, capsys):
    write(tmp_path / "rank0" / "timeline-100.json", rank=0)
    write(tmp_path / "rank1" / "timeline-100.json.gz", rank=1, start_nanos=ZERO + 3 * MS, show_memory=True)
    code, out, err = run(capsys, "trace", "merge", tmp_path, "-o", tmp_path / "all.json.gz")
    assert (code, err) == (0, "")
    assert out.startswith("wrote 2 traces, ")
    trace = json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes()))
    check_trace(trace, nested=True)
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert sorted(names.values()) == [
        "/job:localhost/replica:0/task:0/device:CPU:0 Compute",
        "/job:localhost/replica:0/task:0/device:CPU:0 Tensors",
        "/job:localhost/replica:0/task:1/device:CPU:0 Compute",
        "/job:localhost/replica:0/task:1/device:CPU:0 Tensors",
        "rank 0: Allocators",
        "rank 1: Allocators",
    ]
    starts = {names[e["pid"]][:33]: e["ts"] for e in trace["traceEvents"] if e["name"] == "aten::mean"}
    assert sorted(starts.values()) == [8000, 11000]
    assert [part["moved_micros"] for part in trace["otherData"]["tensortap"]["merged"]] == [0, 3000]
    # A merged trace can be asked, too.
    _, out, _ = run(capsys, "profile", tmp_path / "all.json.gz", "--by", "op")
    assert out.startswith("step 100 of ranks 0, 1: 23 ms from the first to the last; 5 ops each\n")
    assert out.splitlines()[3].split() == [
        "6",
        "ms",
        "37.5%",
        "2",
        "aten::addmm",
        "train.py:12",
        "in",
        "step",
    ]


def test_merged_traces_keep_their_peaks_and_what_they_lack(tmp_path, capsys):
    one = write(tmp_path / "timeline-7.json", step=7, show_memory=True)
    _, alone, _ = run(capsys, "profile", one, "--by", "peak")
    two = write(tmp_path / "timeline-7.rank1.json", step=7, rank=1, start_nanos=ZERO + 3 * MS, slower=2)
    write(two, step=7, rank=1, start_nanos=ZERO + 3 * MS, slower=2, max_bytes=two.stat().st_size - 1)
    three = write(tmp_path / "timeline-8.json", step=8, start_nanos=ZERO + 60 * MS)
    both, all_three = tmp_path / "both.json", tmp_path / "all.json"
    assert run(capsys, "trace", "merge", one, two, "-o", both)[0] == 0
    assert run(capsys, "trace", "merge", both, three, "-o", all_three)[0] == 0
    for merged, who in ((both, "step 7 of ranks 0, 1: "), (all_three, "steps 7, 8 of ranks 0, 1: ")):
        _, out, err = run(capsys, "profile", merged, "--by", "peak")
        assert out.startswith(who)
        assert out.partition("\n")[2] == alone.partition("\n")[2], "of the step and rank that had it"
        assert err == f"note: {str(merged)!r} was cut to its size limit; it lacks dataflow.\n"
    parts = json.loads(all_three.read_text())["otherData"]["tensortap"]["merged"]
    assert [part["moved_micros"] for part in parts] == [0, 3000, 60000]


def test_one_is_not_many(tmp_path, capsys):
    event = {"ph": "X", "cat": "Op", "ts": 0, "dur": 3, "pid": 1, "tid": 1, "args": {}}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps([{**event, "name": "a"}]))
    assert run(capsys, "profile", trace)[1].startswith("1 step: 3 µs, ops running 100% of it; 1 op\n")
    trace.write_text(json.dumps([{**event, "name": "a"}, {**event, "name": "b", "ts": 9, "dur": -2}]))
    _, out, _ = run(capsys, "profile", trace, "--by", "op", "--top", "1")
    assert out.endswith("3 µs  100.0%      1  a\n… and 1 more op\n"), "nothing lasts less than no time"


def test_a_trace_of_another_kind_says_so(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    trace.write_text(
        '[{"ph": "X", "cat": "cpu_op", "ts": 0, "dur": 3, "pid": 1, "tid": 1, "name": "aten::mm"}]'
    )
    _, _, err = run(capsys, "profile", trace)
    assert err == f"note: {str(trace)!r} has no ops that tensortap or TensorFlow recorded.\n"


def test_impossible_times_are_refused_and_an_impossible_clock_is_none(tmp_path, capsys):
    good, odd = write(tmp_path / "timeline-1.json"), tmp_path / "odd.json"
    merge = ("trace", "merge", good, odd, "--force", "-o", tmp_path / "both.json")
    odd.write_text('[{"ph": "X", "cat": "Op", "ts": 1e308, "dur": 1e308, "name": "a"}]')
    for arguments in (("profile", odd), merge):
        code, _, err = run(capsys, *arguments)
        assert (code, err.partition(": ")[2]) == (
            2,
            f"{str(odd)!r} is no trace: 'ts' of its event 0 is 1e+308, which is no time.\n",
        )
    content = json.loads(good.read_text())
    content["otherData"]["tensortap"].update(zero_nanos=10**400, host=None)
    odd.write_text(json.dumps(content))
    code, _, err = run(capsys, *merge)
    assert (code, err) == (
        0,
        f"note: {str(odd)!r} does not tell its wall clock; it is shown from time zero on.\n",
    )


def test_a_trace_without_a_clock_begins_at_zero_with_a_note(tmp_path, capsys):
    ours = write(tmp_path / "timeline-1.json")
    other = write_original(tmp_path / "timeline-2.json")
    code, _, err = run(capsys, "trace", "merge", ours, other, "-o", tmp_path / "all.json")
    assert code == 0
    assert err == f"note: {str(other)!r} does not tell its wall clock; it is shown from time zero on.\n"
    trace = json.loads((tmp_path / "all.json").read_text())
    check_trace(trace, nested=True)
    assert [e["ts"] for e in trace["traceEvents"] if e["name"] == "aten::mean"] == [8000, 8000]


def test_steps_of_one_program_follow_each_other_in_its_lanes(tmp_path, capsys):
    for step, start in ((2, 50 * MS), (1, 0)):  # whichever comes first
        write(tmp_path / f"timeline-{step}.json", step=step, start_nanos=ZERO + start, show_memory=True)
    run(
        capsys,
        "trace",
        "merge",
        tmp_path / "timeline-2.json",
        tmp_path / "timeline-1.json",
        "-o",
        tmp_path / "all.json",
    )
    trace = json.loads((tmp_path / "all.json").read_text())
    check_trace(trace, nested=True)
    steps = [(e["name"], e["pid"], e["tid"], e["ts"]) for e in trace["traceEvents"] if e.get("cat") == "Step"]
    assert [step[0] for step in steps] == ["step 1", "step 2"]
    assert steps[0][1:3] == steps[1][1:3]
    assert steps[1][3] == 50_000
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == [
        "Allocators",
        "/job:localhost/replica:0/task:0/device:CPU:0 Compute",
        "/job:localhost/replica:0/task:0/device:CPU:0 Tensors",
    ]


def test_clocks_of_several_hosts_are_trusted_with_a_note(tmp_path, capsys):
    first, second = write(tmp_path / "timeline-1.json"), write(tmp_path / "timeline-2.json", rank=1)
    trace = json.loads(second.read_text())
    trace["otherData"]["tensortap"]["host"] = "another"
    second.write_text(json.dumps(trace))
    _, _, err = run(capsys, "trace", "merge", first, second, "-o", tmp_path / "all.json")
    assert "are taken to agree" in err
    assert "another" in err


def test_traces_of_other_tools_are_merged_as_they_are(tmp_path, capsys):
    """Ids may be text, time may be missing, the list may stand alone."""
    events = [
        {"ph": "X", "pid": "p", "ts": 5.5, "dur": 1},
        {"ph": "b", "id": "0x1", "pid": 7, "ts": 6},
        {"ph": "M"},
    ]
    (tmp_path / "a.json").write_text(json.dumps(events))
    (tmp_path / "b.json").write_text(json.dumps({"traceEvents": events}))
    code, _, _ = run(
        capsys, "trace", "merge", tmp_path / "a.json", tmp_path / "b.json", "-o", tmp_path / "c.json"
    )
    assert code == 0
    merged = json.loads((tmp_path / "c.json").read_text())["traceEvents"]
    assert [event["ts"] for event in merged if "ts" in event] == [0, 0.5, 0, 0.5]
    assert len({event["pid"] for event in merged}) == 6
    assert len({event["id"] for event in merged if "id" in event}) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty."),
        (b"hello", "is no JSON: Expecting value in line 1."),
        (b"\xff\xfe\x00", "is no trace: it is not text."),
        (b'{"a": 1}', "is no trace: it is JSON without a list of 'traceEvents'."),
        (b"17", "is no trace: it is JSON without a list of 'traceEvents'."),
        (b'{"traceEvents": [{"name": "x"}]}', "is no trace: its event 0 has no 'ph'."),
        (b'{"traceEvents": [{"ph": "X", "ts": "soon"}]}', "is no trace: 'ts' of its event 0 is no number."),
        (b"[" * 100_000, "is no trace: it is nested too deeply."),
        (b"\x1f\x8b\x08\x00rubbish", "breaks off in its compressed data"),
    ],
)
@pytest.mark.parametrize("command", ["profile", "merge"])
def test_what_is_no_trace_is_one_line(tmp_path, capsys, content, message, command):
    bad = tmp_path / "timeline-1.json"
    bad.write_bytes(content)
    if command == "profile":
        code, out, err = run(capsys, "profile", bad)
    else:
        good = write(tmp_path / "timeline-2.json")
        code, out, err = run(capsys, "trace", "merge", good, bad, "-o", tmp_path / "all.json")
        assert not (tmp_path / "all.json").exists()
    assert (code, out) == (2, "")
    assert message in err
    assert str(bad) in err
    assert len(err.splitlines()) == 1


def test_a_file_that_breaks_off_anywhere_is_one_line(tmp_path, capsys):
    whole = write(tmp_path / "timeline-1.json", show_memory=True).read_bytes()
    bad = tmp_path / "cut.json"
    for length in range(1, len(whole) - 1, 97):
        bad.write_bytes(whole[:length])
        code, _, err = run(capsys, "profile", bad)
        assert code == 2
        assert "breaks off after" in err, length
        bad.write_bytes(gzip.compress(whole)[: length // 10])
        code, _, err = run(capsys, "profile", bad)
        assert code == 2
        assert len(err.splitlines()) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "M", "C", "N", "O", "D", "s", "t", "?"])},
    optional={
        "ts": JSON | st.integers(0, 10),
        "dur": st.integers(0, 10),
        "cat": st.sampled_from(["Op", "Memory", "Step"]) | JSON,
        "name": st.just("process_name") | JSON,
        "pid": st.integers(0, 3) | JSON,
        "tid": st.integers(0, 3),
        "id": JSON,
        "args": st.dictionaries(st.sampled_from(["name", "op", "bytes", "snapshot", "cpu"]), JSON) | JSON,
    },
)
FACTS = st.dictionaries(
    st.sampled_from(["zero_nanos", "rank", "step", "host", "peaks", "left_out", "merged"]), JSON
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=6), FACTS)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_line(tmp_path, capsys, events, facts):
    odd = tmp_path / "timeline-1.json"
    odd.write_text(json.dumps({"traceEvents": events, "otherData": {"tensortap": facts}}))
    good, both = write(tmp_path / "timeline-2.json"), tmp_path / "all.json"
    for arguments in (
        ["profile", odd],
        ["profile", odd, "--json"],
        ["trace", "merge", odd, good, "--force", "-o", both],
    ):
        code, out, err = run(capsys, *arguments)
        assert code == 0 or (code == 2 and not out and err.count("\n") == 1 and str(odd) in err)


def test_nothing_to_read_says_what_was_looked_for(tmp_path, capsys):
    code, _, err = run(capsys, "profile", tmp_path)
    assert code == 2
    assert err == (
        f"tensortap profile: There is no timeline-*.json or timeline-*.json.gz in {str(tmp_path)!r} or the "
        "directories in it; ProfilerHook writes them.\n"
    )
    code, _, err = run(capsys, "profile", tmp_path / "none")
    assert err == f"tensortap profile: There is no file or directory {str(tmp_path / 'none')!r}.\n"


def test_merge_refuses_what_would_be_regretted(tmp_path, capsys):
    one, two = write(tmp_path / "timeline-1.json"), write(tmp_path / "timeline-2.json")
    assert "must end in .json or .json.gz" in run(capsys, "trace", "merge", one, two, "-o", tmp_path / "x")[2]
    assert "use --force" in run(capsys, "trace", "merge", one, two, "-o", one)[2]
    assert "name two or more" in run(capsys, "trace", "merge", one, one, "-o", tmp_path / "x.json")[2]
    nowhere = tmp_path / "no" / "x.json"
    assert "There is no directory" in run(capsys, "trace", "merge", one, two, "-o", nowhere)[2]
    (tmp_path / "taken.json").mkdir()
    code, _, err = run(capsys, "trace", "merge", one, two, "--force", "-o", tmp_path / "taken.json")
    assert (code, err) == (
        2,
        f"tensortap trace: {str(tmp_path / 'taken.json')!r} cannot be written: Is a directory.\n",
    )
    assert (
        run(capsys, "profile", one, "--top", "-1")[2]
        == "tensortap profile: --top takes how many to show, got -1.\n"
    )
