"""The publisher: what an engine shows it becomes records, and no fault of ours reaches the engine."""

from __future__ import annotations

import logging
import timeit

import ml_dtypes
import numpy as np
import pytest

from tensortap.errors import FailedPreconditionError
from tensortap.ops.debug_ops import DebugNanCount
from tensortap.ops.view import TensorView
from tensortap.pill import NAN
from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.seam.options import DebugOptions, DebugTensorWatch
from tensortap.sink import publisher as publisher_module
from tensortap.sink.base import Counts
from tensortap.sink.memory import collect, listen
from tensortap.sink.publisher import Publisher
from tests.patience import patience, patient
from tests.sink.sample import CPU, info, node, play, watch_all

VALUES = {"x": np.arange(4, dtype=np.float32), "model/y": np.array([[1.0, np.nan]])}


def test_each_debug_op_of_each_tensor_becomes_a_record():
    with collect("seen") as records:
        play(VALUES, watch_all("memcbk:///seen", "DebugIdentity", "DebugNumericSummary"))
    assert [each.watch_key for each in records] == [
        "x:0:DebugIdentity",
        "x:0:DebugNumericSummary",
        "model/y:0:DebugIdentity",
        "model/y:0:DebugNumericSummary",
    ]
    assert [(each.dtype, each.shape) for each in records[::2]] == [("float32", (4,)), ("float64", (1, 2))]
    assert np.frombuffer(records[0].data, np.float32).tolist() == [0, 1, 2, 3]
    assert np.frombuffer(records[3].data)[NAN] == 1
    assert {each.device for each in records} == {CPU}


def test_a_record_owns_its_value():
    """D10: the value at that moment, whatever the program does with the memory afterwards."""
    value = np.ones(3, np.float32)
    with collect("seen") as records:
        play({"x": value}, watch_all("memcbk:///seen"))
    value[:] = 7
    assert np.frombuffer(records[0].data, np.float32).tolist() == [1, 1, 1]


def test_all_urls_of_a_watch_get_the_record(tmp_path):
    """D21, D24; and the scheme may be written in any case (X23): tensors, graph and metadata alike."""
    url = f"FILE://{tmp_path}/run_1_0"
    with collect("seen") as records:
        run = play(VALUES, [DebugTensorWatch("x", 0, ["DebugIdentity"], [url, "memcbk:///seen"])])
        assert all(sink.flush(patient(10)) for sink in run.sinks)
    assert len(records) == 1
    dump = DebugDumpDir(tmp_path / "run_1_0")
    assert dump.size == 1
    assert dump.nodes() == ["x", "model/y"]


def test_time_never_goes_back_within_a_run(monkeypatch):
    clock = iter([5_000, 9_000, 2_000, 3_000, 12_000])
    monkeypatch.setattr(publisher_module.time, "time_ns", lambda: next(clock))
    with collect("seen") as records:
        play({f"x{n}": VALUES["x"] for n in range(5)}, watch_all("memcbk:///seen"))
    assert [each.timestamp for each in records] == [5, 9, 9, 9, 12]


def test_muted_records_are_counted():
    """D17."""
    with collect("seen") as records:
        run = play(VALUES, watch_all("memcbk:///seen", "DebugNumericSummary(mute_if_healthy=true)"))
    assert [each.node_name for each in records] == ["model/y"]
    assert run.sinks[0].counts.as_dict() == {
        "written": 1, "written_bytes": 128, "muted": 1, "failed": 0, "dropped": 0,
    }  # fmt: skip


def test_a_tensor_without_a_value_is_recorded_as_such():
    """D11, D16."""
    with collect("seen") as records:
        run = Publisher(DebugOptions(watch_all("memcbk:///seen")), info())
        nothing = TensorView(0, "float32", (2, 3), (3, 1))
        run.publish(run.wants(node("x"), 0), node("x"), 0, nothing, CPU)
    (record,) = records
    assert (record.initialized, record.data, record.dtype, record.shape) == (False, None, "float32", (2, 3))


def test_a_debug_op_that_fails_is_counted_and_logged_once(monkeypatch, caplog):
    def fail(self, view):
        raise RuntimeError("kernel trouble")

    monkeypatch.setattr(DebugNanCount, "apply", fail)
    with collect("seen") as records:
        run = play(VALUES | {"z": VALUES["x"]}, watch_all("memcbk:///seen", "DebugNanCount", "DebugIdentity"))
    assert len(records) == 3
    assert run.sinks[0].counts.failed == 3
    assert sorted(line.levelname for line in caplog.records) == ["WARNING"] * 2  # once per dtype


class BrokenSink:
    def __init__(self, counts):
        self.counts = counts

    def write(self, record):
        raise RuntimeError("sink trouble")

    finish = flush = close = lambda self, *args: 1 / 0


def test_a_sink_that_raises_is_counted_and_does_no_harm(caplog):
    counts = Counts()
    run = Publisher(DebugOptions(watch_all("memcbk:///a")), info(), lambda url, info: BrokenSink(counts))
    for _ in range(3):
        run.publish(run.wants(node("x"), 0), node("x"), 0, TensorView.of_numpy(VALUES["x"]), CPU)
    run.finish([], None)
    assert counts.dropped == {"sink failed": 3}
    assert caplog.text.count("sink trouble") == 1


def test_a_listener_that_raises_is_counted():
    listener = listen("seen", lambda record: 1 / 0)
    run = play(VALUES, watch_all("memcbk:///seen"))
    listener.remove()
    listener.remove()
    assert run.sinks[0].counts.dropped == {"listener failed": 2}


def test_a_keyboard_interrupt_passes():
    def interrupt(record):
        raise KeyboardInterrupt

    listener = listen("seen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        play(VALUES, watch_all("memcbk:///seen"))
    listener.remove()


def test_watches_that_match_nothing_are_told_loudly_and_once(caplog):
    """X15."""
    watches = [DebugTensorWatch("model/z", 0, ["DebugIdentity"], ["memcbk:///seen"])]
    with collect("seen"):
        play(VALUES, watches, error="ValueError: stopped early")
        assert caplog.text == "", "a run that stopped early proves nothing"
        play(VALUES, watches)
        play(VALUES, watches)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "A watch matches nothing in this run" in warning.message
    assert "Did you mean 'model/y'?" in warning.message


def test_what_cannot_be_opened_raises_before_the_step_runs():
    """D22."""
    with pytest.raises(ValueError, match=r"grpc://h.*needs a host and a port"):
        play(VALUES, watch_all("grpc://h"))
    with pytest.raises(FailedPreconditionError, match="Nobody listens to memcbk:///unheard"):
        play(VALUES, watch_all("memcbk:///unheard"))
    with pytest.raises(ValueError, match="no debug URL"):
        play(VALUES, [DebugTensorWatch("x", debug_urls=["nonsense"])])


def test_the_step_of_the_options_takes_the_place_of_the_engines():
    with collect("seen"):
        assert play(VALUES, watch_all("memcbk:///seen"), global_step=12).info.global_step == 12
        assert play(VALUES, watch_all("memcbk:///seen"), info(3)).info.global_step == 3


def test_an_unwatched_tensor_costs_a_dictionary_look_up():
    with collect("seen"):
        run = Publisher(DebugOptions([DebugTensorWatch("other", debug_urls=["memcbk:///seen"])]), info())
    x = node("x")
    assert run.wants(x, 0) is None
    seconds = min(timeit.repeat(lambda: run.wants(x, 0), number=10_000, repeat=5)) / 10_000
    assert seconds < 5e-6 * patience()


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "complex64", "bfloat16", "float8_e4m3fn"])
def test_every_dtype_goes_to_disk_and_back(tmp_path, dtype):
    """X13 and E29."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    value = np.array([[0, 1, 1], [1, 0, 1]], np.float32).astype(kind)
    run = play({"x": value}, watch_all(f"file://{tmp_path}/run_1_0", "DebugIdentity", "DebugNumericSummary"))
    assert run.sinks[0].flush(patient(10))
    dump = DebugDumpDir(tmp_path / "run_1_0")
    (back,) = dump.get_tensors("x", 0, "DebugIdentity")
    assert back.dtype == kind
    assert back.tobytes() == value.tobytes()
    assert dump.get_tensors("x", 0, "DebugNumericSummary")[0][[1, 5, 6]].tolist() == [6, 2, 4]
