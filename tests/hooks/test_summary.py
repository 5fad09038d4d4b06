"""The event writer: what TensorBoard finds in the file, and what happens when it cannot be written."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef
from tensorboard.compat.proto.summary_pb2 import Summary

from tensortap.hooks.summary import EventWriter, FileWriterCache, get_event_writer

from .events import read_events, scalars


def graph_def(*names: str) -> Any:
    graph = GraphDef()
    for name in names:
        graph.node.add(name=name, op="NoOp")
    return graph


def test_a_file_appears_at_once_and_starts_with_its_version(tmp_path: Path) -> None:  # B6
    writer = EventWriter(tmp_path / "deep" / "logs")
    events = read_events(tmp_path / "deep" / "logs")
    writer.close()
    assert [event.file_version for event in events] == ["brain.Event:2"]


def test_everything_that_can_be_written(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.add_graph(graph_def("a"), step=1)
    writer.add_session_start(2)
    writer.add_scalar("loss", 0.5, 3)
    writer.add_histogram("weights", np.array([1.0, 2.0, 4.0, np.nan, np.inf]), 4)
    writer.add_run_metadata(RunMetadata(), "step_7")
    writer.add_checkpoint("model.ckpt-5", 5)
    writer.close()
    _, graph, meta_graph, start, scalar, histogram, metadata, checkpoint = read_events(tmp_path)
    assert GraphDef.FromString(graph.graph_def) == graph_def("a")
    assert MetaGraphDef.FromString(meta_graph.meta_graph_def).graph_def == graph_def("a")
    assert (start.session_log.status, start.step) == (SessionLog.START, 2)
    assert (scalar.summary.value[0].tag, scalar.summary.value[0].simple_value) == ("loss", 0.5)
    histo = histogram.summary.value[0].histo
    assert (histo.min, histo.max, histo.num, histo.sum, histo.sum_squares) == (1, 4, 3, 7, 21)
    assert sum(histo.bucket) == 3
    assert len(histo.bucket) == len(histo.bucket_limit)
    assert (metadata.tagged_run_metadata.tag, metadata.step) == ("step_7", 0)
    assert (checkpoint.session_log.status, checkpoint.step) == (SessionLog.CHECKPOINT, 5)


def test_an_unchanged_graph_is_written_once(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    for graph in (graph_def("a"), graph_def("a"), graph_def("a", "b")):
        writer.add_graph(graph)
    writer.close()
    assert sum(bool(event.graph_def) for event in read_events(tmp_path)) == 2


@pytest.mark.parametrize(
    "value",
    [0.5, np.float32(0.5), np.array(0.5), np.array(0.5, ml_dtypes.bfloat16), np.array(0.5, np.float16)],
)
def test_numbers_become_scalars(tmp_path: Path, value: Any) -> None:  # B22
    writer = EventWriter(tmp_path)
    writer.add_value("loss", value, 1)
    writer.close()
    assert scalars(tmp_path) == [(1, "loss", 0.5)]


@pytest.mark.parametrize(
    "value", [np.ones(3), np.ones((2, 2), ml_dtypes.bfloat16), np.arange(3), np.array([True]), np.array([])]
)
def test_arrays_become_histograms(tmp_path: Path, value: Any) -> None:  # B22
    writer = EventWriter(tmp_path)
    writer.add_value("w", value, 1)
    writer.close()
    assert read_events(tmp_path)[-1].summary.value[0].histo.num == value.size


def test_summary_messages_are_written_as_they_are(tmp_path: Path) -> None:  # B22
    message = Summary(value=[Summary.Value(tag="mine", simple_value=2.0)])
    writer = EventWriter(tmp_path)
    writer.add_value("ignored", message, 1)
    writer.add_value("ignored", message.SerializeToString(), 2)
    writer.add_value("ignored", np.array(message.SerializeToString(), dtype=object), 3)
    writer.close()
    assert scalars(tmp_path) == [(1, "mine", 2.0), (2, "mine", 2.0), (3, "mine", 2.0)]


@pytest.mark.parametrize("value", ["text", None, b"no summary", np.array(["a", "b"])])
def test_what_cannot_be_summarised_is_said_once_and_counted(
    tmp_path: Path, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    writer = EventWriter(tmp_path)
    writer.add_value("odd", value, 1)
    writer.add_value("odd", value, 2)
    writer.close()
    assert writer.dropped == 2
    assert caplog.text.count("Cannot write a summary of 'odd'") == 1


def test_large_and_complex_numbers(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.add_value("large", np.array([1e300, 1e300]), 1)
    writer.add_value("wide", np.array([-1.7e308, 1.7e308]), 1)
    writer.add_value("complex", np.complex64(3 + 4j), 1)
    writer.close()
    assert scalars(tmp_path) == [(1, "complex", 5.0)]
    assert writer.dropped == 0


def test_one_writer_per_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # B6
    writer = get_event_writer(tmp_path)
    assert get_event_writer(str(tmp_path)) is writer
    monkeypatch.chdir(tmp_path.parent)
    assert get_event_writer(tmp_path.name) is writer
    FileWriterCache.clear()
    assert get_event_writer(tmp_path) is not writer


def test_a_full_disk_is_said_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = EventWriter(tmp_path)

    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    writer._records.write = full
    for step in range(3):
        writer.add_scalar("loss", 1.0, step)
    writer.flush()
    assert writer.dropped == 3
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "No space left on device" in errors[0].getMessage()
    writer.close()


def test_writing_goes_on_in_a_new_file_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = EventWriter(tmp_path)
    writer.add_scalar("loss", 1.0, 1)

    def torn(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    writer._records.write = torn
    writer.add_scalar("loss", 2.0, 2)
    writer.add_scalar("loss", 3.0, 3)  # too soon to try again
    monkeypatch.setattr(writer, "_next_attempt", 0.0)
    writer.add_scalar("loss", 4.0, 4)
    writer.close()
    writer.add_scalar("loss", 5.0, 5)  # closed is closed
    assert len(list(tmp_path.iterdir())) == 2
    assert [step for step, *_ in scalars(tmp_path)] == [1, 4]
    assert writer.dropped == 3


def test_events_are_visible_while_the_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventWriter(tmp_path)
    writer.add_scalar("loss", 1.0, 1)
    monkeypatch.setattr(writer, "_next_flush", 0.0)
    writer.add_scalar("loss", 2.0, 2)
    assert [step for step, *_ in scalars(tmp_path)] == [1, 2]
    writer.close()


def test_an_impossible_directory_is_said_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    writer = EventWriter(tmp_path / "file" / "logs")
    writer.add_scalar("loss", 1.0, 1)
    writer.flush()
    writer.close()
    assert writer.dropped == 2
    assert caplog.text.count("Cannot write events") == 1


def test_writing_events_imports_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from tensortap.hooks.summary import EventWriter\n"
        f"w = EventWriter({str(tmp_path)!r}); w.add_scalar('loss', 1.0, 1); w.close()\n"
        "print([m for m in ('tensorflow', 'torch', 'jax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert scalars(tmp_path) == [(1, "loss", 1.0)]


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys\n"
        "import tensortap.hooks.monitored, tensortap.hooks.training\n"
        "heavy = ('tensorflow', 'torch', 'jax', 'tensorboard', 'google.protobuf', 'grpc')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
