"""The types of the page's client, held against real answers of a real server by TypeScript itself."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from tensortap.server import DebugServer
from tensortap.server.recorded import Viewer
from tests.page.test_bundle import WEB, built_with
from tests.patience import finished, wait_until
from tests.server.tools import get, http

RUN = "/api/jobs/session/runs/40"
ANSWERS = {
    "Answer": "/api/jobs/session/answer",
    "Findings": "/api/jobs/session/findings",
    "Grid": "/api/jobs/session/grid",
    "History": "/api/jobs/session/health?tensor=model/encoder/div:0&points=10",
    "Picture": f"{RUN}/picture?tensor=model/encoder/div:0&other_run=40",
    "Value": f"{RUN}/value?tensor=model/encoder/div:0",
    "Neighbours": f"{RUN}/node?name=model/encoder/div",
    "SourceFiles": f"{RUN}/lines",
    "Ranks": "/api/jobs/session/ranks",
    "Traces": "/api/jobs/session/traces",
    "Trace": "/api/jobs/session/traces/0",
    "Gates": "/api/jobs/session/gates",
    "Breakpoints": "/api/jobs/session/breakpoints",
    "ServerFacts": "/api/server",
    "{ jobs: T.Job[] }": "/api/jobs",
}


def test_every_answer_is_what_the_client_takes_it_for(recorded, tmp_path):
    if reason := built_with():
        pytest.skip(reason)
    lines = ['import type * as T from "./api/types";']

    def hold(kind, answer):
        name = kind if kind.startswith("{") else f"T.{kind}"
        lines.append(f"export const answer{len(lines)}: {name} = {json.dumps(answer)};")

    with Viewer([recorded]) as viewer:
        wait_until(lambda: get(viewer, ANSWERS["Answer"])["state"] == "bad")
        wait_until(
            lambda: get(viewer, ANSWERS["Grid"])["progress"] == 1 and get(viewer, ANSWERS["Grid"])["tensors"]
        )
        for kind, address in ANSWERS.items():
            status, answer = http(viewer, address)
            assert status == 200, (address, answer)
            hold(kind, answer)
        path = get(viewer, ANSWERS["SourceFiles"])["files"][0]["path"]
        hold("SourceMarks", get(viewer, f"{RUN}/lines?path={quote(path)}"))
        hold("SourceText", get(viewer, f"{RUN}/source?path={quote(path)}"))
        asked = {"task": 0, "rows": [[[0, 3]], [[4, 5]]], "from": 0, "to": 60, "columns": 20}
        status, tile = http(viewer, "/api/jobs/session/grid", "POST", asked)
        assert status == 200, tile
        hold("Tile", tile)
    with DebugServer(tmp_path / "root") as server:
        hold("ServerFacts", get(server, "/api/server"))
    # Beside the sources, where the types are; `satisfies` would let unknown properties of nested objects pass.
    file = WEB / "src" / "answers.check.ts"
    file.write_text("\n".join(lines))
    try:
        done = finished(["npx", "tsc", "--noEmit"], cwd=WEB)
    finally:
        file.unlink()
    assert done.returncode == 0, done.stdout[:3000]
