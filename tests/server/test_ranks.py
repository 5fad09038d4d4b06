"""Which rank differs first: the pure comparison, and the command on what a server received."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.analyze.ranks import Reading, RunReadings, compare_ranks
from tensortap.commands import main
from tensortap.records import Record, RunInfo
from tensortap.store import SessionStore
from tests.server.tools import device, pill, summary


def run_of(number, **ranks):
    """One run; every rank's tensors as `{name: value}`, in the order of time."""
    return RunReadings(
        number,
        10 * number,
        {
            int(rank[1:]): [
                Reading(name, "DebugHash", 0, time, value.encode())
                for time, (name, value) in enumerate(tensors.items())
            ]
            for rank, tensors in ranks.items()
        },
    )


def test_the_first_to_diverge_comes_first():
    found = compare_ranks(
        [
            run_of(0, r0={"x": "a", "w": "1", "v": "1"}, r1={"x": "b", "w": "1", "v": "1"}),
            run_of(1, r0={"x": "a", "w": "2", "v": "2"}, r1={"x": "b", "w": "2", "v": "2"}),
            run_of(2, r0={"x": "a", "w": "3", "v": "3"}, r1={"x": "b", "w": "3", "v": "4"}),
            run_of(3, r0={"x": "a", "w": "5", "v": "3"}, r1={"x": "b", "w": "6", "v": "4"}),
        ]
    )
    assert [(each.tensor, each.run, each.step, each.equal_runs) for each in found.diverged] == [
        ("v", 2, 20, 2),
        ("w", 3, 30, 3),
    ]
    assert [each.tensor for each in found.different] == ["x"]
    assert (found.ranks, found.runs, found.equal) == ((0, 1), 4, 0)
    assert found.first.odd_ranks == (0, 1)  # of two nobody can say who is wrong


def test_the_minority_is_odd():
    same = {f"r{rank}": {"w": "1"} for rank in range(4)}
    found = compare_ranks([run_of(0, **same), run_of(1, **{**same, "r2": {"w": "9"}})])
    assert found.first.odd_ranks == (2,)


def test_what_a_rank_lacks_is_named():
    found = compare_ranks([run_of(0, r0={"w": "1", "v": "1"}, r1={"w": "1"}), run_of(1, r0={"w": "1"})])
    assert found.missing == {"v:DebugHash": (1,)}
    assert (found.runs, found.equal, found.first) == (1, 1, None)


@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))),
        max_size=6,
    )
)
def test_every_watch_is_counted_once(runs):
    found = compare_ranks(
        [
            run_of(number, **{f"r{rank}": tensors for rank, tensors in ranks.items()})
            for number, ranks in enumerate(runs)
        ]
    )
    compared = {
        name
        for ranks in runs
        if len(ranks) > 1
        for name in "abc"
        if sum(name in tensors for tensors in ranks.values()) > 1
    }
    names = [each.tensor for each in (*found.diverged, *found.different)]
    assert len(names) == len(set(names))
    assert found.equal + len(names) == len(compared)
    assert [each.run for each in found.diverged] == sorted(each.run for each in found.diverged)


@pytest.fixture
def directory(tmp_path):
    with SessionStore(tmp_path / "dumps") as store:
        for rank in range(3):
            for index in range(3):
                info = RunInfo(index, 10 * index, 1000 + 10 * index + rank, task=rank)
                with store.new_run(info) as run:
                    drift = 0.25 * (rank == 2 and index == 2)
                    run.write(summary("model/w", pill(mean=index + drift), rank, 2000 + index))
                    run.write(summary("model/act", pill(mean=rank), rank, 3000 + index))
                    run.write(
                        Record(
                            "h", 0, "DebugHash", device(rank), 4000, "uint64", (1,), np.uint64([7]).tobytes()
                        )
                    )
                    run.finish({}, {})
    return tmp_path / "dumps"


def test_the_command(directory, capsys):
    assert main(["ranks", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert "3 runs of ranks 0, 1, 2 compared: 1 watches equal in all of them." in shown
    assert "model/w:0 diverged first: run 2, step 20, rank 2. It was equal in 2 runs before." in shown
    assert "1 watches differ from the first run on, first model/act:0." in shown
    assert main(["ranks", str(directory), "--json", "-n", "w", "--last", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 2
    assert [(each["tensor"], each["odd_ranks"]) for each in found["diverged"]] == [("model/w:0", [2])]


def test_mistakes_are_explained(directory, tmp_path, capsys):
    run = next(directory.glob("run_*"))
    assert main(["ranks", str(run)]) == 2
    assert "name the session directory of all ranks" in capsys.readouterr().err
    with SessionStore(tmp_path / "one") as store, store.new_run(RunInfo(0, 0, 17)) as writer:
        writer.finish({}, {})
    assert main(["ranks", str(tmp_path / "one")]) == 0
    assert "No run was recorded by two ranks." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host", "0.0.0.0"], "give it a token"),
        (["--max-bytes", "many"], "--max-bytes must be a positive number with one of the units k, m, g, t"),
        (["--max-age", "0h"], "--max-age must be a positive number"),
        (["--tls-cert", "cert.pem"], "both files"),
        (["--port", "70000"], "70000 is no port"),
        (["--port", "-1"], "-1 is no port"),
        (["--host", "192.0.2.1", "--token", "x"], "Port 6064 of 192.0.2.1 cannot be used: Cannot assign"),
        (["--port", "0", "--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.key"], "/nowhere.key"),
    ],
)
def test_serve_refuses_with_one_line(tmp_path, arguments, text, capsys, monkeypatch):
    monkeypatch.delenv("TENSORTAP_TOKEN", raising=False)
    assert main(["serve", "--root", str(tmp_path), *arguments]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert len(said.splitlines()) == 1
