"""ProfilerHook: when it profiles, what it writes, and that training never suffers for it."""

from __future__ import annotations

import gzip
import inspect
import json
import logging
import os
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.hooks import timer
from tensortap.hooks.summary import FileWriterCache
from tensortap.reader.session_dir import SessionDir
from tensortap.records import Node
from tests.hooks.counter_session import CounterSession
from tests.hooks.events import read_events
from tests.patience import patient
from tests.profile.trace_rules import check_trace

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def _event_writers():
    yield
    FileWriterCache.clear()


def training(seed=0):
    """A small model that trains, and its step."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return model, step


def train(hooks, runs, **options):
    model, step = training()
    with tt.MonitoredSession(tt.torch.Session(step, modules={"model": model}, **options), hooks) as session:
        for _ in range(runs):
            session.run("loss")
    return model


def steps_in(directory):
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in directory.glob("timeline-*"))


def trace_of(directory, step):
    return json.loads((directory / f"timeline-{step}.json").read_text())


def slices(trace):
    """Events of ops by node name."""
    return {
        event["args"]["name"]: event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["cat"] == "Op"
    }


# --- B5 to B14: when it profiles, and what it writes ----------------------------------------------------


def test_arguments_are_those_of_the_original():  # B5
    parameters = inspect.signature(tt.ProfilerHook).parameters.values()
    positional = [(each.name, each.default) for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == [
        ("save_steps", None),
        ("save_secs", None),
        ("output_dir", ""),
        ("show_dataflow", True),
        ("show_memory", False),
    ]


@pytest.mark.parametrize("arguments", [{}, {"save_steps": 1, "save_secs": 1.0}])
def test_exactly_one_period(arguments, tmp_path):  # B5
    with pytest.raises(ValueError, match="exactly one of save_steps and save_secs"):
        tt.ProfilerHook(output_dir=tmp_path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_files": 0}, "max_files=0: expected a whole number from 1 on"),
        ({"max_files": "3"}, "max_files='3'"),
        ({"max_bytes": -1}, "max_bytes=-1"),
        ({"max_bytes": "1MB"}, "max_bytes='1MB'"),
        ({"start_step": "a"}, "start_step='a': expected a whole number"),
        ({"stop_step": 2.5}, "stop_step=2.5"),
        ({"start_step": 9, "stop_step": 3}, "stop_step=3 comes before start_step=9"),
        ({"save_steps": 0}, "save_steps=0"),
        ({"save_steps": 1.5}, "save_steps=1.5"),
        ({"save_steps": "2"}, "save_steps='2'"),
        ({"save_steps": None, "save_secs": -1}, "save_secs=-1: expected a number of seconds"),
        ({"save_steps": None, "save_secs": float("nan")}, "save_secs=nan"),
        ({"save_steps": None, "save_secs": "x"}, "save_secs='x'"),
    ],
)
def test_impossible_numbers_are_refused_at_once(arguments, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        tt.ProfilerHook(**{"save_steps": 1, "output_dir": tmp_path, **arguments})
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_are_numbers(tmp_path):
    train([tt.ProfilerHook(np.int64(2), output_dir=tmp_path, max_files=np.int32(1))], 5)
    assert steps_in(tmp_path) == [2]
    tt.ProfilerHook(save_secs=np.float32(0.5), output_dir=tmp_path)


def test_the_event_file_is_there_from_the_start(tmp_path):  # B6
    tt.ProfilerHook(save_steps=1, output_dir=tmp_path / "traces")
    assert len(list((tmp_path / "traces").glob("events.out.tfevents.*"))) == 1


def test_the_current_directory_is_the_default(tmp_path, monkeypatch):  # B5
    monkeypatch.chdir(tmp_path)
    train([tt.ProfilerHook(save_steps=1)], 2)
    assert steps_in(tmp_path) == [2]


def test_a_program_that_changes_directory_moves_nothing(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    hook = tt.ProfilerHook(save_steps=1, output_dir="traces")
    monkeypatch.chdir("elsewhere")
    train([hook], 2)
    assert steps_in(tmp_path / "traces") == [2]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_graph_without_a_global_step_is_refused(tmp_path):  # B7
    graph = tt.Graph()
    graph.record([Node("x", "Placeholder")])  # some engine's, which keeps none
    with graph.as_default(), pytest.raises(RuntimeError, match="ProfilerHook needs a global step"):
        tt.ProfilerHook(save_steps=1, output_dir=tmp_path).begin()


@pytest.mark.parametrize(
    ("save_steps", "start", "runs", "files"),
    [(2, 0, 7, [2, 4, 6]), (1, 0, 7, [2, 3, 4, 5, 6, 7]), (3, 0, 8, [3, 6]), (2, 5, 5, [7, 9])],
)
def test_steps_that_are_profiled(save_steps, start, runs, files, tmp_path):  # B8, B12
    train([tt.ProfilerHook(save_steps, output_dir=tmp_path)], runs, global_step=start)
    assert steps_in(tmp_path) == files


def test_seconds_between_profiles(tmp_path, monkeypatch):  # B13
    now = [100.0]
    monkeypatch.setattr(timer, "default_clock", lambda: now[0])
    hook = tt.ProfilerHook(save_secs=2, output_dir=tmp_path)
    _, step = training()
    with tt.MonitoredSession(tt.torch.Session(step), [hook]) as session:
        for elapsed, files in [(0, 0), (2.5, 1), (2.6, 1), (4.4, 1), (4.5, 2)]:
            now[0] = 100.0 + elapsed
            session.run("loss")
            assert hook.flush()
            assert len(steps_in(tmp_path)) == files


def test_the_callers_level_is_raised_and_its_options_kept(tmp_path):  # B9
    raw = CounterSession()
    mine = tt.RunOptions(trace_level=tt.TraceLevel.SOFTWARE_TRACE, timeout_in_ms=5000)
    with tt.MonitoredSession(raw, [tt.ProfilerHook(2, output_dir=tmp_path, show_memory=True)]) as session:
        for _ in range(2):
            session.run("y", options=mine)
    runs = [(each.trace_level, each.timeout_in_ms, each.trace_memory) for each in raw.options if each]
    assert runs == [(1, 5000, False), (3, 5000, True)]
    assert mine.trace_level == tt.TraceLevel.SOFTWARE_TRACE


def test_the_real_step_names_the_file(tmp_path):  # B10
    def step():
        session.global_step += 4  # and the session counts one more
        return {"y": X * 2}

    session = tt.torch.Session(step)
    with tt.MonitoredSession(session, [tt.ProfilerHook(save_steps=2, output_dir=tmp_path)]) as running:
        for _ in range(4):
            running.run("y")
    assert steps_in(tmp_path) == [10, 20]


def test_what_a_profiled_step_leaves(tmp_path):  # B6, B11
    train([tt.ProfilerHook(save_steps=2, output_dir=tmp_path)], 3)
    trace = trace_of(tmp_path, 2)
    check_trace(trace, nested=True)
    addmm = slices(trace)["model/0/addmm"]
    assert addmm["name"] == "aten::addmm"
    assert addmm["args"]["module"] == "model/0"
    assert addmm["args"]["source"].startswith(f"{__file__}:")
    assert {event["ph"] for event in trace["traceEvents"]} >= {"M", "X"}

    events = read_events(tmp_path)
    assert events[0].file_version
    assert events[1].graph_def
    assert events[2].meta_graph_def
    tagged = [event for event in events if event.HasField("tagged_run_metadata")]
    assert [(event.tagged_run_metadata.tag, event.step) for event in tagged] == [("step_2", 0)]
    from tensorboard.compat.proto.config_pb2 import RunMetadata
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    metadata = RunMetadata.FromString(tagged[0].tagged_run_metadata.run_metadata)
    (device,) = metadata.step_stats.dev_stats
    timed = {stats.node_name for stats in device.node_stats}
    graph = [GraphDef.FromString(event.graph_def) for event in events if event.graph_def][-1]
    assert {"model/0/addmm", "gradients/model/0/weight"} <= timed & {node.name for node in graph.node}


def test_dataflow_and_memory_on_request(tmp_path):
    for flow, memory in [(True, True), (False, True), (True, False), (False, False)]:
        place = tmp_path / f"{flow}-{memory}"
        train([tt.ProfilerHook(1, None, place, flow, memory)], 2)
        trace = trace_of(place, 2)
        check_trace(trace, nested=True)
        kinds = {event["ph"] for event in trace["traceEvents"]}
        assert ("s" in kinds) == flow
        assert ("C" in kinds) == memory


def test_no_trace_at_the_end_and_none_of_a_run_that_fails(tmp_path):  # B14
    hook = tt.ProfilerHook(save_steps=1, output_dir=tmp_path)
    left = [1, 1, 1]

    def step():
        left.pop()
        return {"y": X + 1}

    with pytest.raises(IndexError), tt.MonitoredSession(tt.torch.Session(step), [hook]) as session:
        while True:
            session.run("y")
    assert steps_in(tmp_path) == [2, 3], "what was measured before is on disk"
    assert hook.dropped == 0


# --- what people asked for beyond --------------------------------------------------------------------------


def test_a_window_of_steps(tmp_path):
    train([tt.ProfilerHook(save_steps=2, output_dir=tmp_path, start_step=5, stop_step=8)], 12)
    assert steps_in(tmp_path) == [5, 7]


def test_a_limit_of_files(tmp_path):
    train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path, max_files=2)], 6)
    assert steps_in(tmp_path) == [2, 3]


def test_a_limit_of_bytes_says_what_it_left_out(tmp_path, caplog):
    train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path / "whole", show_memory=True)], 2)
    whole = (tmp_path / "whole" / "timeline-2.json").stat().st_size
    hook = tt.ProfilerHook(save_steps=1, output_dir=tmp_path, show_memory=True, max_bytes=whole * 3 // 4)
    train([hook], 2)
    assert (tmp_path / "timeline-2.json").stat().st_size <= whole * 3 // 4
    check_trace(trace_of(tmp_path, 2), nested=True)
    assert "left out dataflow" in caplog.text


def test_compressed_traces(tmp_path):
    train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path, gzip=True)], 2)
    check_trace(json.loads(gzip.decompress((tmp_path / "timeline-2.json.gz").read_bytes())), nested=True)


def test_whole_stacks(tmp_path):
    train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path, stacks=True)], 2)
    stack = slices(trace_of(tmp_path, 2))["model/0/addmm"]["args"]["stack"]
    assert stack[-1].startswith(f"{__file__}:")
    assert stack[-1].endswith("step")


def test_blocks_that_the_program_named(tmp_path):
    linear = nn.Linear(3, 1)
    left_open = []

    def step():
        with torch.profiler.record_function("nothing but Python"):
            pass
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            loss = linear(X).mean()
        left_open.append(torch.profiler.record_function("left open").__enter__())
        return {"loss": loss + 1}

    session = tt.torch.Session(step, modules={"linear": linear})
    with tt.MonitoredSession(session, [tt.ProfilerHook(save_steps=1, output_dir=tmp_path)]) as running:
        for _ in range(2):
            running.run("loss")
    trace = trace_of(tmp_path, 2)
    check_trace(trace, nested=True)
    blocks = {event["name"]: event for event in trace["traceEvents"] if event.get("cat") == "Block"}
    assert list(blocks) == ["outer", "inner", "left open"]
    addmm, inner = slices(trace)["linear/addmm"], blocks["inner"]
    assert inner["ts"] <= addmm["ts"] < addmm["ts"] + addmm["dur"] <= inner["ts"] + inner["dur"]
    lanes = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert lanes == ["MainThread", "MainThread: blocks"]
    assert "nothing but Python" in slices(trace), "it has no ops inside, so it is drawn among them"


def test_a_loop_that_stays_as_it_is(tmp_path):
    model, step = training()
    with tt.torch.monitor(model, hooks=[tt.ProfilerHook(save_steps=2, output_dir=tmp_path)]) as monitor:
        for _ in range(5):
            with monitor.run():
                step()
    assert steps_in(tmp_path) == [2, 4]
    assert "model/0/addmm" in slices(trace_of(tmp_path, 4))


def test_a_directory_can_be_used_again(tmp_path):
    hook = tt.ProfilerHook(save_steps=2, output_dir=tmp_path)
    for _ in range(2):
        train([hook], 3)
    train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path)], 3)
    assert steps_in(tmp_path) == [2, 3]
    assert len(list(tmp_path.iterdir())) == 3, "two traces and one event file"


def test_ranks_share_a_directory(tmp_path, monkeypatch):
    train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path)], 2)
    monkeypatch.setenv("RANK", "1")
    train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path)], 2)
    names = {path.name for path in tmp_path.glob("timeline-*")}
    assert names == {"timeline-2.json", "timeline-2.rank1.json"}
    assert '"rank":1' in (tmp_path / "timeline-2.rank1.json").read_text()


def test_values_are_the_same_bits(tmp_path):
    plain = train([], 4)
    profiled = train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path, show_memory=True)], 4)
    for mine, theirs in zip(plain.parameters(), profiled.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_dumping_hook_beside_it(tmp_path):
    hooks = [
        tt.ProfilerHook(save_steps=1, output_dir=tmp_path / "traces", show_memory=True),
        tt.DumpingDebugHook(tmp_path / "dumps"),
    ]
    model = train(hooks, 3)
    plain = train([], 3)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), plain.parameters(), strict=True))
    assert steps_in(tmp_path / "traces") == [2, 3]
    runs = [run.open() for run in SessionDir(tmp_path / "dumps")]
    assert len(runs) == 3
    dumped = {datum.node_name for datum in runs[1].dumped_tensor_data}
    assert {"model/0/addmm", "model/2/addmm"} <= dumped & set(slices(trace_of(tmp_path / "traces", 2)))


def test_the_program_profiles_itself(tmp_path, caplog):
    hook = tt.ProfilerHook(save_steps=1, output_dir=tmp_path)
    with torch.profiler.profile() as theirs:
        train([hook], 4)
    assert sum(event.name == "aten::addmm" for event in theirs.events()) == 8
    assert steps_in(tmp_path) == []
    assert [record.message for record in caplog.records].count(
        "The program runs its own torch.profiler, and PyTorch allows only one: steps are not profiled while it is "
        "active."
    ) == 1


def test_the_page_about_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()
    (example,) = (
        each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ProfilerHook(" in each
    )
    model, step = training()
    exec(
        example.replace("100", "2", 1).replace("1000", "5"),
        {"tt": tt, "step": step, "model": model, "feeds": {}},
    )
    assert steps_in(tmp_path / "traces") == [2, 4]


# --- faults ---------------------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_written_to(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    hook = tt.ProfilerHook(save_steps=1, output_dir=tmp_path / "file" / "traces")
    model = train([hook], 4)
    plain = train([], 4)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), plain.parameters(), strict=True))
    assert hook.dropped == 3
    said = [record.message for record in caplog.records if record.name == "tensortap.profile"]
    assert len(said) == 2, "once when it happens, once at the end"
    assert "Cannot write the trace of step 2" in said[0]
    assert said[1] == "3 profiled steps could not be written."


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        hook = tt.ProfilerHook(save_steps=1, output_dir=disk)
        model = train([hook], 8)
        plain = train([], 8)
        assert all(torch.equal(*pair) for pair in zip(model.parameters(), plain.parameters(), strict=True))
        assert hook.dropped > 0
        for step in steps_in(disk):
            check_trace(trace_of(disk, step), nested=True)
        assert not list(disk.glob(".timeline*")), "nothing half-written stays"
    finally:
        FileWriterCache.clear()
        subprocess.run(["umount", str(disk)], check=True)


def test_writing_is_done_elsewhere_and_waited_for_at_the_end(tmp_path):
    hook = tt.ProfilerHook(save_steps=1, output_dir=tmp_path)
    writers = []
    logging_of = logging.getLogger("tensortap.profile")

    class Note(logging.Handler):
        def emit(self, record):
            writers.append(threading.current_thread().name)

    logging_of.addHandler(handler := Note())
    try:
        (tmp_path / "timeline-2.json").mkdir()  # cannot be replaced by a file
        train([hook], 3)
    finally:
        logging_of.removeHandler(handler)
    assert writers[0] == "tensortap-profile"
    assert trace_of(tmp_path, 3)
    assert hook.dropped == 1


def test_many_hooks_share_one_thread(tmp_path):
    for number in range(5):
        train([tt.ProfilerHook(save_steps=1, output_dir=tmp_path / str(number))], 2)
    assert [thread.name for thread in threading.enumerate()].count("tensortap-profile") == 1


LEFT_OPEN = """
import sys, torch, tensortap as tt
hook = tt.ProfilerHook(save_steps=1, output_dir=sys.argv[1])
session = tt.MonitoredSession(tt.torch.Session(lambda: {"y": torch.ones(3) + 1}), [hook])
for _ in range(4):
    session.run("y")
"""


def test_the_end_of_the_program_waits_for_traces_of_a_session_that_was_not_ended(tmp_path):
    subprocess.run([sys.executable, "-c", LEFT_OPEN, str(tmp_path)], check=True, timeout=patient(120))
    assert steps_in(tmp_path) == [2, 3, 4]


# --- TensorBoard ------------------------------------------------------------------------------------------

SERVER = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # TensorFlow is not needed, and slow to import
from tensorboard.main import run_main
run_main()
"""


def test_tensorboard_serves_the_run_metadata(tmp_path):  # G12
    train([tt.ProfilerHook(save_steps=2, output_dir=tmp_path)], 3)
    FileWriterCache.clear()
    command = [sys.executable, "-c", SERVER, "--logdir", str(tmp_path), "--port", "0", "--load_fast", "false"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"http://localhost:(\d+)/", line):
                break
        else:
            pytest.fail("TensorBoard did not start")
        base = f"http://localhost:{found[1]}/data/plugin/graphs"

        def get(path):
            with urllib.request.urlopen(f"{base}/{path}", timeout=patient(60)) as answer:
                return answer.read().decode()

        (info,) = json.loads(get("info")).values()
        assert info["run_graph"]
        assert "step_2" in info["tags"]
        assert info["tags"]["step_2"]["profile"]
        text = get("run_metadata?run=.&tag=step_2")
        assert 'node_name: "model/0/addmm"' in text
        assert 'name: "model/0/addmm"' in get("graph?run=.&limit_attr_size=1024&large_attrs_key=_too_large")
    finally:
        server.terminate()
        server.wait(patient(30))
        server.stderr.close()
