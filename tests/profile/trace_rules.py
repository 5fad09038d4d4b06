"""The rules of Chrome's trace format, as far as traces of ours can break them.

    check_trace(json.loads(text))

raises an AssertionError that names the first event that is wrong. Times are compared in nanoseconds.
"""

from __future__ import annotations

import json
from collections import defaultdict

REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "t": {"name", "cat", "pid", "tid", "ts", "id"},
    "N": {"name", "cat", "pid", "tid", "ts", "id"},
    "O": {"name", "cat", "pid", "tid", "ts", "id", "args"},
    "D": {"name", "cat", "pid", "tid", "ts", "id"},
    "C": {"name", "cat", "pid", "tid", "ts", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
}


def check_trace(trace, nested=False):
    """Check a whole trace.

    Args:
        trace: the parsed JSON.
        nested: whether slices of a lane may lie within each other, or only follow each other.
    """
    json.dumps(trace, allow_nan=False)
    events = trace["traceEvents"]
    check_fields(events)
    lanes = check_lanes(events, nested)
    check_flows(events, lanes)
    check_objects(events)
    check_counters(events)


def nanos(micros):
    return round(micros * 1000)


def check_fields(events):
    named = {event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    names_are_over = False
    for event in events:
        assert event["ph"] in REQUIRED, event
        assert set(event) >= REQUIRED[event["ph"]], event
        assert isinstance(event["pid"], int), event
        assert event["pid"] in named, f"a process without a name: {event}"
        assert isinstance(event["name"], str), event
        if event["ph"] == "M":
            assert not names_are_over, f"names come first: {event}"
            assert isinstance(event["args"]["name"], str), event
        else:
            names_are_over = True
            assert isinstance(event["tid"], int), event
            assert event["ts"] >= 0, event
        assert event.get("dur", 0) >= 0, event


def check_lanes(events, nested):
    """Slices of a lane follow each other or nest; the lanes, by (pid, tid)."""
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = nanos(event["ts"])
            lanes[event["pid"], event["tid"]].append((start, start + nanos(event["dur"]), event))
    for slices in lanes.values():
        if not nested:
            starts = [start for start, _, _ in slices]
            assert starts == sorted(starts), "the slices of a lane are in order"
        open_ends = []
        # Viewers put the longer one outside; of two equal ones, the one that comes first in the file.
        for start, end, event in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or nested, f"overlaps another slice of its lane: {event}"
            assert not open_ends or end <= open_ends[-1], f"sticks out of the slice around it: {event}"
            open_ends.append(end)
    return lanes


def check_flows(events, lanes):
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "st":
            flows[event["cat"], event["id"]].append(event)
            moment = nanos(event["ts"])
            touched = any(start <= moment <= end for start, end, _ in lanes[event["pid"], event["tid"]])
            assert touched, f"an arrow without a slice: {event}"
    for ends in flows.values():
        assert [event["ph"] for event in ends] == ["s", "t"], f"an arrow has two ends: {ends}"
        assert len({event["name"] for event in ends}) == 1, ends
        assert ends[0]["ts"] <= ends[1]["ts"], f"an arrow against time: {ends}"


def check_objects(events):
    objects = defaultdict(list)
    for event in events:
        if event["ph"] in "NOD":
            objects[event["pid"], event["id"]].append(event)
    for life in objects.values():
        assert [event["ph"] for event in life] == ["N", "O", "D"], f"made, seen and deleted once: {life}"
        times = [event["ts"] for event in life]
        assert times == sorted(times), f"in this order: {life}"
        assert len({event["name"] for event in life}) == 1, life


def check_counters(events):
    series = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            assert event["args"], event
            series[event["pid"], event["name"]].append(event)
    for values in series.values():
        times = [event["ts"] for event in values]
        assert times == sorted(times), "a counter goes with time"
        for event in values:
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values()), event
