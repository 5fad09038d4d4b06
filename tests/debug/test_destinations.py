"""Where records go is told with the run: hooks work side by side, nothing is remembered, nothing foreign is removed."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import time
import weakref
from dataclasses import replace

import pytest
import torch

import tensortap as tt
from tensortap.reader import SessionDir
from tensortap.records import RunInfo
from tensortap.seam.options import DebugTensorWatch
from tensortap.server import DebugServer
from tensortap.sink.destinations import open_sink
from tensortap.sink.grpc import GrpcSink
from tensortap.sink.memory import MemorySink
from tensortap.sink.stream import sender, senders
from tensortap.sink.wishes import wishes_of
from tensortap.store.layout import run_name
from tensortap.watch.plan import plan_watches
from tensortap.watch.urls import Destination
from tests.patience import patient
from tests.sink.peers import free_port

QUICK = tt.StreamOptions(connect_timeout_secs=0.2, flush_secs=patient(5), gate_timeout_secs=0.1)

STEADY = replace(QUICK, connect_timeout_secs=20.0)


def step(x):
    return {"y": (x + 1) * 2}


def only(pattern, op="DebugIdentity"):
    return lambda fetches, feeds: tt.WatchOptions(op, node_name_regex_allowlist=pattern)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + patient(seconds)
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert condition()


# --- side by side ----------------------------------------------------------------------------------


def test_two_hooks_with_the_same_address_work_side_by_side(tmp_path):
    """Each watches and streams as it was told, and knows what became of its own records."""
    with DebugServer(tmp_path, http_port=None) as server:
        hooks = [
            tt.GrpcDebugHook(server.address, only("add"), stream=STEADY),
            tt.GrpcDebugHook(
                server.address, only("mul", "DebugNanCount"), stream=replace(STEADY, retry_secs=2.0)
            ),
        ]
        with tt.MonitoredSession(tt.torch.Session(step), hooks=hooks) as session:
            for _ in range(3):
                session.run("y", {"x": torch.ones(2)})
        (job,) = server.jobs()
        seen = [
            {(datum.tensor_name, datum.debug_op) for datum in ref.open(validate=False).dumped_tensor_data}
            for ref in server.session(job.name)
        ]
    assert sorted(seen, key=str) == sorted(
        3 * [{("add:0", "DebugIdentity")}, {("mul:0", "DebugNanCount")}], key=str
    )
    assert [hook.outcomes()[0].partition(": ")[2] for hook in hooks] == 2 * ["3 records arrived"]


def test_the_options_of_a_hook_are_not_those_of_another():
    address = f"localhost:{free_port()}"
    first = senders.sender_of(address, QUICK)
    second = senders.sender_of(address, replace(QUICK, max_queue_bytes=1))
    assert first is not second
    assert first.options == QUICK
    assert senders.sender_of(address, replace(QUICK)) is first, (
        "who streams in the same way shares a connection"
    )


def test_a_run_has_as_many_sinks_as_destinations():
    heard = [[], []]
    ours = [Destination("grpc://localhost:1", lambda info, to=to: MemorySink(info, to)) for to in heard]
    watches = [DebugTensorWatch("*", -1, ["DebugNanCount"], [url, url]) for url in ours]
    _, urls = plan_watches([*watches, *watches])
    assert len(urls) == 2
    assert urls[0] is ours[0]
    assert urls[1] is ours[1]
    assert all(isinstance(open_sink(url, RunInfo(0, 0, 0)), MemorySink) for url in urls)
    _, plain = plan_watches([DebugTensorWatch("x", 0, ["DebugNanCount"], ["grpc://localhost:1"])] * 2)
    assert plain == ["grpc://localhost:1"], "the same text is the same place, if nobody says otherwise"


def test_a_destination_is_copied_as_itself_and_pickled_as_its_url():
    there = Destination("file:///tmp/run_1_0", print)
    assert copy.deepcopy([there])[0] is copy.copy(there) is there
    assert type(pickle.loads(pickle.dumps(there))) is str
    assert type(str(there)) is str
    with pytest.raises(ValueError, match="no debug URL"):
        Destination("nowhere", print)


def test_two_dumping_hooks_each_keep_what_they_were_told(tmp_path):
    hooks = [
        tt.DumpingDebugHook(tmp_path / "all", only("add")),
        tt.DumpingDebugHook(tmp_path / "bad", only("mul"), retention=tt.Retention(when="inf_or_nan")),
    ]
    with tt.MonitoredSession(tt.torch.Session(step), hooks=hooks) as session:
        for value in (1.0, float("nan"), 1.0):
            session.run("y", {"x": torch.full((2,), value)})
    assert [ref.index for ref in SessionDir(tmp_path / "all")] == [0, 1, 2]
    assert [ref.index for ref in SessionDir(tmp_path / "bad")] == [1]


# --- nothing is remembered -------------------------------------------------------------------------


def test_nothing_is_left_of_sessions_that_are_over(tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "IDLE_SECS", 0.05)
    gone = []

    def watched_session(number):
        hooks = [
            tt.DumpingDebugHook(tmp_path / f"hook{number}"),
            tt.GrpcDebugHook(f"localhost:{free_port()}", stream=QUICK),
        ]
        with tt.MonitoredSession(tt.torch.Session(step), hooks=hooks) as session:
            session.run("y", {"x": torch.ones(2)})
        wrapper = tt.DumpingDebugWrapperSession(tt.torch.Session(step), tmp_path / f"wrapper{number}")
        wrapper.run("y", {"x": torch.ones(2)})
        wrapper.close()
        gone.extend(
            weakref.ref(each)
            for each in (
                hooks[0]._dumper,
                hooks[1]._streamer,
                hooks[1]._streamer.senders()[0],
                wrapper._dumper,
            )
        )

    for number in range(3):
        watched_session(number)
    wait_until(lambda: not any(each() for each in gone))
    assert not list(senders._senders)


def test_an_idle_sender_begins_anew(tmp_path, monkeypatch):
    """Its thread ends when nobody uses it; a later run on the same sender is sent all the same."""
    monkeypatch.setattr(sender, "IDLE_SECS", 0.05)
    with DebugServer(tmp_path, http_port=None) as server:
        hook = tt.GrpcDebugHook(server.address, stream=STEADY)
        (kept,) = hook._streamer.senders()
        with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
            for _ in range(3):
                session.run("y", {"x": torch.ones(2)})
                assert hook.flush(patient(10))
                time.sleep(0.2)
        assert kept.outcome().dropped == {}
        assert len(server.session(server.jobs()[0].name).runs) == 3


def test_what_became_of_a_sender_that_is_gone_is_said_at_the_end(monkeypatch, caplog):
    monkeypatch.setattr(sender, "IDLE_SECS", 0.05)
    address = f"localhost:{free_port()}"
    sink = GrpcSink(f"grpc://{address}", RunInfo(0, 0, 17), QUICK)
    sink.close()
    assert sink.flush(patient(10))
    del sink
    wait_until(lambda: bool(sender.unsaid))
    with caplog.at_level(logging.INFO):
        senders._end_all()
    assert f"1 run for the debug server {address}" in caplog.text


def test_gates_are_remembered_while_they_are_used_and_of_few_urls_afterwards():
    used = wishes_of("grpc://localhost:9/used")
    first = weakref.ref(wishes_of("grpc://localhost:9/0"))
    for number in range(1, 200):
        wishes_of(f"grpc://localhost:9/{number}")
    gc.collect()
    assert first() is None
    assert wishes_of("grpc://localhost:9/used") is used


# --- nothing foreign is removed --------------------------------------------------------------------


def refuse(fetches, feeds):
    """A watch that cannot be, so that the run is refused before it begins, when its directory is there."""
    return tt.WatchOptions("DebugNothing")


def run_refused(session):
    with pytest.raises(tt.errors.InvalidArgumentError, match="DebugNothing"):
        session.run("y", {"x": torch.ones(1)})


def test_a_run_that_never_began_takes_its_directory_back(tmp_path):
    run_refused(tt.DumpingDebugWrapperSession(tt.torch.Session(step), tmp_path / "dumps", refuse))
    assert not list((tmp_path / "dumps").glob("run_*"))


def test_what_something_else_wrote_into_the_directory_stays(tmp_path):
    root = tmp_path / "dumps"

    class Noting(tt.DumpingDebugWrapperSession):
        def prepare_run_debug_urls(self, fetches, feed_dict):
            url = super().prepare_run_debug_urls(fetches, feed_dict)
            (root / url.rpartition("/")[2] / "notes.txt").write_text("mine")
            return url

    run_refused(Noting(tt.torch.Session(step), root, refuse))
    (run,) = root.glob("run_*")
    assert sorted(path.name for path in run.iterdir()) == ["notes.txt", "run.json"]


def test_a_directory_that_another_made_under_the_same_name_stays(tmp_path, monkeypatch):
    """A hook names the directory of a run, and makes it only when the run begins; another rank may be first."""
    monkeypatch.setattr(time, "time_ns", lambda: 17_000)
    taken = tmp_path / "dumps" / run_name(17, 0)

    def refuse_while_another_writes(fetches, feeds):
        taken.mkdir()
        (taken / "run.json").write_text("of another rank")
        return refuse(fetches, feeds)

    hook = tt.DumpingDebugHook(tmp_path / "dumps", refuse_while_another_writes)
    with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
        run_refused(session)
    assert (taken / "run.json").read_text() == "of another rank"
