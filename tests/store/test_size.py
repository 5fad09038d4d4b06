"""What a session takes on the disk: large graphs and histories are compressed, counted and bounded."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from tensortap.debug.run_directories import RunDirectories
from tensortap.errors import DumpFormatError
from tensortap.reader import SessionDir
from tensortap.records import Frame, Node, RunInfo, TensorSpec
from tensortap.seam.options import DebugOptions
from tensortap.sink.budget import Budget
from tensortap.sink.publisher import Publisher
from tensortap.store.content import COMPRESSED_FROM, ContentStore
from tensortap.store.health import HealthHistory, HealthLog, Pill
from tensortap.store.layout import health_path
from tensortap.store.session import session_size
from tensortap.wire.bounded import MAX_MESSAGE_BYTES
from tests.sink.sample import info, watch_all


def nodes(count, name="cell"):
    """The graph of a loop, as it looks unrolled."""
    stack = (Frame("/home/me/train.py", 17, "step"),)
    return [
        Node(f"model/{name}/mul_{i}", "aten::mul", outputs=(TensorSpec("float32", (8, 16)),), stack=stack)
        for i in range(count)
    ]


def execute(dumper, executed):
    """A run that executes these nodes."""
    publisher = Publisher(DebugOptions(watch_all(dumper.prepare(None, None))), info())
    publisher.finish(executed, None)


def test_a_large_graph_is_stored_compressed_and_read_as_it_was(tmp_path):
    store = ContentStore(tmp_path)
    content = b"a node much like the one before it; " * 20_000
    digest = store.put("graphs", content)
    (path,) = (tmp_path / "graphs").iterdir()
    assert path.name == f"{digest}.pb.gz"
    assert digest == hashlib.sha256(content).hexdigest()
    assert path.stat().st_size < len(content) / 50
    assert gzip.decompress(path.read_bytes()) == content  # with the tools that everybody has
    assert ContentStore(tmp_path).get("graphs", digest) == content
    assert ContentStore(tmp_path).put("graphs", content) == digest  # another rank finds it there
    assert len(list((tmp_path / "graphs").iterdir())) == 1


def test_a_small_graph_stays_as_other_programs_read_it(tmp_path):
    digest = ContentStore(tmp_path).put("graphs", b"few nodes")
    assert (tmp_path / "graphs" / f"{digest}.pb").read_bytes() == b"few nodes"


@pytest.mark.parametrize("damage", ["cut", "changed", "other"])
def test_a_damaged_compressed_graph_is_refused(tmp_path, damage):
    store = ContentStore(tmp_path)
    digest = store.put("graphs", bytes(COMPRESSED_FROM))
    (path,) = (tmp_path / "graphs").iterdir()
    stored = bytearray(path.read_bytes())
    stored[30] ^= 0xFF
    path.write_bytes({"cut": stored[:-20], "changed": stored, "other": gzip.compress(b"other")}[damage])
    with pytest.raises(DumpFormatError, match="has changed"):
        store.get("graphs", digest)


def test_a_graph_that_would_grow_beyond_all_measure_is_refused_before_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr("tensortap.store.content.MAX_MESSAGE_BYTES", 10 * COMPRESSED_FROM)
    store = ContentStore(tmp_path)
    digest = store.put("graphs", bytes(11 * COMPRESSED_FROM))
    with pytest.raises(DumpFormatError, match="larger than anything"):
        store.get("graphs", digest)
    assert MAX_MESSAGE_BYTES > 10 * COMPRESSED_FROM


@pytest.mark.parametrize("tensors", [3, 2000])
def test_a_history_gives_back_what_was_added_however_much_it_was(tmp_path, tensors):
    log = HealthLog(tmp_path, 0)
    for run in range(70):  # enough to be regrouped once
        pills = [Pill(f"t{i}:0", "cpu", run, np.full(14, run + i / 8)) for i in range(tensors)]
        log.add(f"run_{run}_{run}", RunInfo(run, run, run), pills, [])
    log.close()
    with HealthHistory(health_path(tmp_path, 0)) as history:
        found = history.pills("t2:0")
        assert found["step"].tolist() == list(range(70))
        assert found["mean"].tolist() == [run + 0.25 for run in range(70)]
        assert len(history.bad_runs()) == 70


def test_a_program_of_another_graph_in_every_run_takes_little_room(tmp_path):
    dumper = RunDirectories(tmp_path / "root")
    for run in range(4):
        execute(dumper, nodes(10_000, f"cell_{run}"))
    dumper.close()
    assert len(list((tmp_path / "root" / "graphs").iterdir())) == 4
    assert session_size(tmp_path / "root") < 2 << 20
    assert all(len(run.open().nodes()) == 10_000 for run in SessionDir(tmp_path / "root"))


def test_graphs_count_against_the_budget_of_a_session(tmp_path):
    dumper = RunDirectories(tmp_path / "root", budget=Budget(bytes_per_session=100_000))
    for run in range(12):
        execute(dumper, nodes(200, f"cell_{run}"))
    dumper.close()
    graphs = list((tmp_path / "root" / "graphs").iterdir())
    assert sum(each.stat().st_size for each in graphs) < 100_000
    assert 1 < len(graphs) < 12
    runs = [run.open() for run in SessionDir(tmp_path / "root")]
    assert len(runs[0].nodes()) == 200
    assert any("graphs could not be stored" in each and "session budget" in each for each in runs[-1].notices)
