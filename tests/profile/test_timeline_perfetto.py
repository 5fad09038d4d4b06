"""Perfetto itself opens our traces, complains of nothing and reads what we wrote, to the nanosecond."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from tensorboard.compat.proto.step_stats_pb2 import StepStats

from tensortap.commands import main
from tensortap.profile.timeline import Timeline
from tensortap.seam.step_facts import OpFacts, StepFacts
from tensortap.store.trace_file import read_trace
from tests.profile.perfetto import Perfetto, why_not
from tests.profile.test_timeline import CPU, ZERO, add

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("TENSORTAP_SLOW_TESTS"), reason="set TENSORTAP_SLOW_TESTS=1 to run slow tests"
    ),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

COMPLAINTS = "select name, value from stats where value > 0 and severity != 'info'"
SLICES = "select category, name, ts, dur from slice where category is not 'Memory'"
ARROWS = """
    select one.category as start, other.category as end, count(*) as n
    from flow join slice one on one.id = slice_out join slice other on other.id = slice_in group by 1, 2"""


def made_up_step(seed, rank=0, lengths=(0, 1, 7, 1_001, 54_321)):
    """A thousand ops in two threads, some touching each other, some called by others."""
    choose = random.Random(seed)
    stats = StepStats()
    stats.dev_stats.add(device=CPU.replace("task:0", f"task:{rank}"), thread_names={1: "main", 2: "other"})
    facts, clocks = {}, {1: 0, 2: 0}
    for number in range(1000):
        thread = choose.choice([1, 1, 2])
        start = clocks[thread] + choose.choice([0, 0, 1, 17, 1_003])
        length = choose.choice(lengths)
        name = f"model/{number // 50 % 4}/op_{number}"
        inputs = ", ".join(
            f"model/{before // 50 % 4}/op_{before}" for before in choose.sample(range(number), min(2, number))
        )
        add(stats, name, f"aten::op({inputs})", start, length, choose.choice([0, 64, 4096]), thread=thread)
        if length > 1000:
            add(stats, f"{name}/inner", "aten::inner()", start + 3, length - 3, thread=thread)
        clocks[thread] = start + length
        facts[name] = OpFacts(
            name, "aten::op", f"model/{number // 50 % 4}", choose.choice(["forward", "backward"])
        )
    return Timeline(stats, facts=StepFacts(step=seed, ops=facts, rank=rank, start_nanos=ZERO))


def nanos(micros):
    return round(micros * 1000)


def check_that_it_reads_all(path):
    events = read_trace(path).events
    with Perfetto(path) as viewer:
        assert viewer.query(COMPLAINTS) == []
        found = Counter(tuple(row.values()) for row in viewer.query(SLICES))
        arrows = viewer.query(ARROWS)
        totals = viewer.query("select count(*) as n, max(value) as most from counter")
    assert found == Counter(
        (event["cat"], event["name"], nanos(event["ts"]), nanos(event["dur"]))
        for event in events
        if event["ph"] == "X"
    )
    drawn = sum(event["ph"] == "s" for event in events)
    assert arrows == [{"start": "Op", "end": "Op", "n": drawn}], "an arrow of an op is not one of its module"
    counters = [event for event in events if event["ph"] == "C"]
    assert totals == [{"n": len(counters), "most": max(event["args"]["cpu"] for event in counters)}]


def test_a_trace(tmp_path):
    path = made_up_step(7).write(tmp_path / "timeline-7.json", show_memory=True).path
    check_that_it_reads_all(path)


def test_chrome_tracing_reads_it_too(tmp_path):
    # It ties no arrow to an op that took no time at all; Perfetto does.
    step = made_up_step(7, lengths=(1, 7, 1_001, 54_321))
    path = step.write(tmp_path / "timeline-7.json", show_memory=True).path
    phases = Counter(event["ph"] for event in read_trace(path).events)
    with Perfetto(path) as viewer:
        found = viewer.chrome_tracing()
    assert found == {"warnings": [], "arrows": phases["s"], "slices": phases["X"], "objects": phases["N"]}


def test_a_compressed_trace_of_several_ranks(tmp_path):
    for rank in range(2):
        made_up_step(rank, rank).write(tmp_path / f"timeline-{rank}.json", show_memory=True)
    assert main(["trace", "merge", str(tmp_path), "-o", str(tmp_path / "all.json.gz")]) == 0
    check_that_it_reads_all(tmp_path / "all.json.gz")
