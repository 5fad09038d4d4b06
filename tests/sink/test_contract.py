"""What holds for every sink, whatever is at its other end: the same records in, the same records out, all counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tensortap.reader.session_dir import SessionDir
from tensortap.server import DebugServer
from tensortap.sink.base import RunEnd, Sink
from tensortap.sink.destinations import open_sink
from tensortap.sink.memory import collect
from tensortap.wire.values import as_bytes
from tests.patience import patient
from tests.store.sample import INFO, batch_of, nodes, pill, records

NODES = [node for each in nodes().values() for node in each]


@dataclass
class Place:
    """Somewhere records go, and how to get them back."""

    url: str
    read: Any


def plain(key, device, timestamp, value):
    """A value in a form that can be compared."""
    if value is None or getattr(value, "initialized", True) is False:
        content = None
    elif isinstance(value, list):
        content = b"|".join(value)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "OS":
        content = b"|".join(value.reshape(-1).tolist())
    else:
        content = bytes(as_bytes(value))
    return key, device, timestamp, content


def of_record(record):
    return plain(record.watch_key, record.device, record.timestamp, record.data)


def in_directory(session):
    (run,) = session
    dump = run.open(validate=False)
    return [
        plain(datum.watch_key, datum.device_name, datum.timestamp, datum.get_tensor())
        for datum in dump.dumped_tensor_data
    ]


@pytest.fixture(params=["file", "memory", "grpc"])
def place(request, tmp_path):
    if request.param == "file":
        run = tmp_path / "root" / f"run_{INFO.timestamp}_{INFO.index}"
        yield Place(f"file://{run}", lambda: in_directory(SessionDir(run.parent)))
    elif request.param == "memory":
        with collect("contract") as heard:
            yield Place("memcbk:///contract", lambda: list(map(of_record, heard)))
    else:
        with DebugServer(tmp_path / "root", http_port=None) as server:
            yield Place(f"grpc://{server.address}/job", lambda: in_directory(SessionDir(server.root / "job")))


@pytest.fixture
def sink(place):
    opened = open_sink(place.url, INFO)
    yield opened
    opened.close()


def buffered(each):
    """As engines make records: data in the form of a buffer."""
    if each.data is None or each.dtype == "string":
        return each
    return replace(each, data=bytes(as_bytes(each.data)))


@pytest.mark.parametrize("batches", [False, True], ids=["one by one", "in a batch"])
def test_what_goes_in_comes_out_and_is_counted(place, sink, batches):
    assert isinstance(sink, Sink)
    listed = [
        buffered(each) for each in records() if each.node_name != "loss"
    ]  # two of those in a microsecond
    fits = [each for each in listed if batches and each.dtype != "string" and each.initialized]
    if fits:
        sink.write_batch(batch_of(fits))
    for each in listed:
        if not any(each is other for other in fits):
            sink.write(each)
    sink.finish(RunEnd(NODES))
    assert sink.flush(patient(30))
    assert sorted(place.read()) == sorted(map(of_record, listed))
    assert sink.counts.written == len(listed)
    assert sink.counts.written_bytes == sum(each.nbytes for each in listed)
    assert sink.counts.lost == 0


def test_a_run_without_records_is_a_run(place, sink):
    sink.finish(RunEnd(NODES, error="RuntimeError: out of memory"))
    assert sink.flush(patient(30))
    assert place.read() == []
    assert sink.counts.written == sink.counts.lost == 0


def test_the_end_comes_once_and_nothing_after_it_raises(sink):
    sink.write(buffered(pill("fc/addmm")))
    sink.finish(RunEnd(NODES))
    sink.finish(RunEnd(NODES))
    sink.write(buffered(pill("fc/addmm", after=1)))
    sink.write_batch(batch_of([pill("fc/addmm", after=2)]))
    assert sink.flush(patient(30))
    sink.close()
    sink.close()
    assert sink.flush(patient(30))
    assert sink.counts.written + sink.counts.lost == 3, "every record is accounted for"
