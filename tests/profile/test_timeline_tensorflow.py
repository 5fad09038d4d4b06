"""The same step statistics through TensorFlow's timeline and ours, for every combination of flags (G1–G11).

Where nothing of the following occurs, the texts are equal byte for byte. TensorFlow's timeline of real runs is brought
to what `docs/profile.md` says of the differences before it is compared:

1. An op of zero microseconds: the snapshot of its tensors lies at its start, not a microsecond before.
2. A consumer that began before its producer's end was noted: the arrow leaves at the consumer's start, not after it.
3. A tensor whose life is shorter than a microsecond is not counted; in TensorFlow it is released before it is allocated
   and totals become negative.
4. A node that runs several times (loops): each time makes tensors of its own, with their own identity, life and arrows.
   TensorFlow reuses identities, deletes only the last and draws all arrows from it, also against time.
5. A node of which only later outputs have values (Switch): outputs are known by their slot, not by their place.
6. The tensors of a peak are those that hold memory at that moment; TensorFlow also lists empty ones.
7. The message is left as it is, and one Timeline may be used again; `op_time` must be one of the three.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tensorboard.compat.proto.step_stats_pb2 import StepStats

from tensortap.profile.timeline import Timeline
from tests.profile.trace_rules import check_trace

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="compares with TensorFlow, which is not installed"
)

PROGRAM = Path(__file__).with_name("tensorflow_timelines.py")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Of each case, the message and what TensorFlow made of it: flags, text and peaks."""
    directory = tmp_path_factory.mktemp("tensorflow")
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, PROGRAM, directory], check=True, capture_output=True, env=quiet)
    return {
        path.stem: (
            StepStats.FromString(path.read_bytes()),
            json.loads(path.with_suffix(".json").read_text()),
        )
        for path in directory.glob("*.pb")
    }


def test_made_up_steps_are_the_same_to_the_byte(theirs):
    cases = [name for name in theirs if name == "kernels" or name.startswith("made_up")]
    assert len(cases) == 21
    for case in cases:
        stats, results = theirs[case]
        assert len(results) == 12
        for flags, text, peaks in results:
            assert Timeline(stats).generate_chrome_trace_format(*flags) == text, (case, flags)
            found = Timeline(stats).analyze_step_stats(*flags).allocator_maximums
            assert {key: [*peak[:2], sorted(peak.tensors)] for key, peak in found.items()} == peaks
            check_trace(json.loads(text))


@pytest.mark.parametrize("case", ["matmul", "several_devices"])
def test_real_steps_have_the_same_events(theirs, case):
    stats, results = theirs[case]
    before = stats.SerializeToString()
    timeline = Timeline(stats)
    for flags, text, peaks in results:
        trace = json.loads(timeline.generate_chrome_trace_format(*flags))
        assert trace["traceEvents"] == as_documented(json.loads(text)["traceEvents"]), flags
        check_trace(trace)
        found = timeline.analyze_step_stats(*flags).allocator_maximums
        assert set(found) == set(peaks)
        for allocator, (_, _, tensors) in peaks.items():
            assert found[allocator].tensors <= set(tensors)  # 3, 6
    assert stats.SerializeToString() == before  # 7


def test_a_loop_has_the_same_ops_and_tensors_of_every_turn(theirs):
    stats, results = theirs["while_loop"]
    nodes = Counter(node.node_name for device in stats.dev_stats for node in device.node_stats)
    assert max(nodes.values()) > 3, "a loop that turned"
    for flags, text, _ in results:
        trace = json.loads(Timeline(stats).generate_chrome_trace_format(*flags))
        check_trace(trace)
        ours, original = by_phase(trace["traceEvents"]), by_phase(json.loads(text)["traceEvents"])
        assert ours["M"] == original["M"]
        assert ours["X"] == original["X"]
        place = lambda event: (event["ts"], event["pid"], event["tid"])
        assert [*map(place, ours["N"])] == [*map(place, original["N"])]
        assert len(ours["D"]) == len(ours["N"]) >= len(original["D"])
        for arrow in ours["s"]:
            node = arrow["name"].partition(":")[0]
            assert any(
                op["args"]["name"] == node and op["ts"] <= arrow["ts"] <= op["ts"] + op["dur"]
                for op in ours["X"]
                if (op["pid"], op["tid"]) == (arrow["pid"], arrow["tid"])
            ), f"leaves from one of the turns that made it: {arrow}"
        assert bool(ours["s"]) == flags[0]


def test_other_op_times_are_refused(theirs):
    with pytest.raises(ValueError, match="'schedule', 'gpu', 'all', got 'cpu'"):
        Timeline(theirs["matmul"][0]).generate_chrome_trace_format(op_time="cpu")


def by_phase(events):
    phases = defaultdict(list)
    for event in events:
        phases[event["ph"]].append(event)
    return phases


def as_documented(events):
    """TensorFlow's events of a step without loops, with differences 1 to 3."""
    phases = by_phase(events)
    born = {event["id"]: event["ts"] for event in phases["N"]}
    died = {event["id"]: event["ts"] for event in phases["D"]}
    arrives = {event["id"]: event["ts"] for event in phases["t"]}
    momentary = defaultdict(list)  # allocator -> (time, size) of tensors without a life
    changed = []
    for event in events:
        if event["ph"] == "O":
            event = {**event, "ts": max(event["ts"], born[event["id"]])}
            if born[event["id"]] == died[event["id"]]:
                allocator, size = described(event["args"]["snapshot"]["tensor_description"])
                momentary[allocator].append((born[event["id"]], size))
        elif event["ph"] == "s":
            event = {**event, "ts": min(event["ts"], arrives[event["id"]])}
        if event["ph"] != "C":
            changed.append(event)
    for name in dict.fromkeys(event["name"] for event in phases["C"]):
        before, steps = 0, []
        for event in (each for each in phases["C"] if each["name"] == name):
            steps.append((event["ts"], event["args"][name] - before, event))
            before = event["args"][name]
        for time, size in momentary[name]:
            for change in (-size, size):
                steps.remove(next(step for step in steps if step[:2] == (time, change)))
        total = 0
        for _, change, event in steps:
            total += change
            changed.append({**event, "args": {name: total}})
    return changed


def described(text):
    """Allocator and size in the text of a tensor's description."""
    words = text.replace("\n", " ").split()
    after = lambda key, default: words[words.index(key) + 1] if key in words else default
    return after("allocator_name:", ""), int(after("requested_bytes:", 0))
