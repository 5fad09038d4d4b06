"""What the page asks the server for, asked without a browser."""

from __future__ import annotations

import base64
import json
import urllib.request

import numpy as np
import pytest

from tensortap.analyze.mosaic import RECORDED, UNREAD, Mosaic
from tensortap.pill import KIND_NAN
from tensortap.server import DebugServer
from tensortap.server.recorded import Viewer
from tests.page.conftest import tensortap
from tests.patience import wait_until
from tests.server.tools import get, http, metadata, pill, stream, summary

JOB = "/api/jobs/gpt"


@pytest.fixture
def server(tmp_path):
    with DebugServer(tmp_path / "root") as running:
        yield running


def send(server, index, nan=0.0, rank=0):
    stream(
        server,
        metadata(index, step=index, rank=rank, job="gpt"),
        summary("w", pill(nan=nan), rank, 1_700_000_000_000_100 + index),
        summary("loss", pill(), rank, 1_700_000_000_000_101 + index),
    )


def plane(tile, name, rows):
    return np.frombuffer(base64.b64decode(tile[name]), np.uint8).reshape(rows, -1)


def tile_of(server, **asked):
    asked = {
        "task": None,
        "rows": [[[0, 1]], [[1, 2]], [[0, 2]]],
        "from": 0,
        "to": 100,
        "columns": 100,
        **asked,
    }
    status, found = http(server, f"{JOB}/grid", "POST", asked)
    assert status == 200, found
    return found


def test_the_grid_grows_with_the_job_and_joins_what_shares_a_pixel(server):
    for index in range(3):
        send(server, index, nan=float(index == 1))
    grid = wait_until(lambda: (found := get(server, f"{JOB}/grid"))["columns"] == 3 and found)
    bad = dict(zip(grid["tensors"], grid["first_bad"], strict=True))
    assert (bad, grid["tasks"]) == ({"w:0": 1, "loss:0": None}, [0])
    row = grid["tensors"].index("w:0")
    rows = [[[row, row + 1]], [[1 - row, 2 - row]], [[0, 2]]]
    kinds = plane(tile_of(server, rows=rows), "kinds", 3)
    assert kinds.tolist() == [[8, 9, 8], [8, 8, 8], [8, 9, 8]]
    assert plane(tile_of(server, rows=rows, columns=1), "kinds", 3).tolist() == [[9], [8], [9]]
    assert tile_of(server, **{"from": 1, "to": 2})["runs"] == [1, 2]
    send(server, 3)
    wait_until(lambda: get(server, f"{JOB}/grid")["columns"] == 4)


def test_ranks_have_grids_of_their_own(server):
    send(server, 0)
    send(server, 0, nan=1.0, rank=1)
    wait_until(lambda: get(server, f"{JOB}/grid")["tasks"] == [0, 1])
    assert get(server, f"{JOB}/grid", task=0)["first_bad"] == [None, None]
    assert sorted(get(server, f"{JOB}/grid", task=1)["first_bad"], key=str) == [0, None]
    assert http(server, f"{JOB}/grid?task=7")[0] == 404


@pytest.mark.parametrize(
    "asked",
    [{"rows": 3}, {"rows": [[1]]}, {"from": -1}, {"columns": "x"}, {"columns": 1 << 30}, {"to": None}],
)
def test_a_tile_that_cannot_be_is_refused(server, asked):
    send(server, 0)
    whole = {"rows": [[[0, 1]]], "from": 0, "to": 1, "columns": 1, **asked}
    assert http(server, f"{JOB}/grid", "POST", whole)[0] == 400


def test_the_answer_is_that_of_why(recorded):
    with Viewer([recorded]) as viewer:
        job = "/api/jobs/session"
        answer = wait_until(lambda: (found := get(viewer, f"{job}/answer"))["state"] == "bad" and found)
        told = json.loads(tensortap("why", recorded, "--json").stdout)
        assert answer["report"]["first_bad"]["cause"] == told["first_bad"]["cause"]
        assert answer["report"]["first_bad"]["node"] == "model/encoder/div"
        assert "Division by zero" in answer["text"]
        assert get(viewer, f"{job}/runs/40")["name"] == told["first_bad"]["run_name"]
        assert http(viewer, f"{job}/runs/4000")[0] == 404
        status, refused = http(
            viewer, f"{job}/gates", "PUT", {"watch_keys": ["a:0:DebugIdentity"], "state": "open"}
        )
        assert (status, "tensortap serve" in refused["error"]) == (400, True)


def test_events_tell_of_what_changes(server):
    send(server, 0)
    with urllib.request.urlopen(f"{server.http_address}/api/events?job=gpt") as events:

        def state():
            while True:
                line = events.readline()
                if line.startswith(b"data: "):
                    return json.loads(line[6:])

        wait_until(lambda: state()["runs"] == 1)
        send(server, 1, nan=1.0)
        wait_until(lambda: (found := state())["runs"] == 2 and found["alerts"] > 0)


def test_the_page_is_served_with_a_strict_policy_and_needs_no_token(tmp_path):
    with DebugServer(tmp_path, token="sesame") as server:
        with urllib.request.urlopen(server.http_address) as page:
            policy = page.headers["content-security-policy"]
            tag = page.headers["etag"]
            assert b"page.js" in page.read()
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert http(server, "/api/jobs")[0] == 401
        assert http(server, "/api/events")[0] == 401
        assert http(server, "/", headers={"If-None-Match": tag})[0] == 304


def test_a_mosaic_that_is_full_joins_runs():
    mosaic = Mosaic(cells=8)
    for run in range(16):
        rows = np.array([mosaic.row("a:0"), mosaic.row("b:0")])
        pills = np.zeros((2, 14))
        pills[:, 0], pills[0, 2] = 1, run == 5
        mosaic.add(rows, np.full(2, mosaic.column(run, run)), pills)
    assert mosaic.stride == 4
    assert mosaic.first_bad() == [1, None]
    kinds = mosaic.tile([[(0, 1)]], 0, 4, 4).kinds
    assert kinds.tolist() == [[RECORDED, RECORDED | KIND_NAN, RECORDED, RECORDED]]
    assert not kinds[0, 0] & UNREAD
