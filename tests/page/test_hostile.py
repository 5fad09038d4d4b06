"""Names, lines and sources that a program may have, and that mean something else to a browser: shown as text."""

from __future__ import annotations

import numpy as np
import pytest

from tensortap.records import Frame, Node, Record, RunInfo, TensorSpec
from tensortap.server.recorded import Viewer
from tensortap.store import SessionStore
from tests.page.conftest import tensortap
from tests.patience import wait_until
from tests.server.tools import device, pill

SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked = 2'>"
NAMES = [
    f"model/{SCRIPT.replace('/', '|')}",
    f"model/{IMAGE}",
    "model/'\"><svg onload=window.hacked=3>",
    "model/javascript:window.hacked=4",
    "model/\u202egnp.exe\u202c\u200f",
    "model/nul\0byte\x1b[31m",
    f"model/{'long' * 2000}",
    "model/{{constructor}}${1}",
    "model/#?&=%00%2e",
]
FILE = f"{IMAGE}.py".replace("/", "_")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    place = tmp_path_factory.mktemp("hostile")
    program = place / FILE
    program.write_text(f"x = 1  # {SCRIPT}\n{IMAGE}\n" + "y" * 20_000 + "\n\u202eabc\n")
    nodes, before = [], ()
    for number, name in enumerate(NAMES):
        frame = Frame(str(program), number % 3 + 1, f"step {SCRIPT}")
        nodes.append(
            Node(name, f"aten::{IMAGE}", before, device=device(), stack=(frame,), module=f"model {SCRIPT}",
                 phase="forward", attributes={SCRIPT: IMAGE}, outputs=(TensorSpec("float32", (4,)),))
        )  # fmt: skip
        before = (nodes[-1].tensor(0),)
    root = place / f"session {IMAGE}".replace("/", "_")
    with SessionStore(root) as store:
        for index in range(3):
            began = 1_700_000_000_000_000 + index
            with store.new_run(RunInfo(index, index, began)) as run:
                for number, name in enumerate(NAMES):
                    bad = float(index == 2)
                    values = pill(nan=bad)
                    run.write(
                        Record(name, 0, "DebugNumericSummary", device(), began + number, "float64", (15,),
                               values.tobytes())
                    )  # fmt: skip
                    whole = np.array([1, np.nan if bad else 2, 3, 4], np.float32)
                    run.write(
                        Record(
                            name,
                            0,
                            "DebugIdentity",
                            device(),
                            began + number,
                            "float32",
                            (4,),
                            whole.tobytes(),
                        )
                    )
                run.finish(
                    {device(): nodes}, {"records": 9}, error=f"{SCRIPT} failed", sources=[str(program)]
                )
    return root


def views(job):
    yield "overview"
    yield "overview?sort=bad"
    for name in NAMES:
        yield f"tensor?name={quoted(name)}:0&run=2"
        yield f"graph?name={quoted(name)}&run=2"
    yield "source?run=2&line=1"
    yield "ranks"
    yield "timelines"
    yield f"{quoted(SCRIPT)}"


def quoted(text):
    from urllib.parse import quote

    return quote(text, safe="")


def test_everything_is_shown_as_text(window, hostile):
    with Viewer([hostile]) as viewer:
        page = window(viewer.http_address)
        page.page.on("dialog", lambda dialog: page.complaints.append("a dialog"))
        (job,) = viewer.jobs()
        for view in views(job.id):
            page.go(f"#/{quoted(job.id)}/{view}")
            wait_until(lambda: page.page.locator(".state .spinner").count() == 0)
            page.page.wait_for_timeout(150)
            assert page.page.evaluate("window.hacked") is None, view
            strange = "main img, main script, main svg[onload], main b:empty, iframe, object"
            assert page.page.locator(strange).count() == 0, view
        page.go(f"#/{quoted(job.id)}/source?run=2&line=2")
        page.page.locator(".line.chosen").wait_for()
        assert page.page.locator(".line.chosen bdi").inner_text() == IMAGE
        page.go(f"#/{quoted(job.id)}/tensor?name={quoted(NAMES[1])}:0&run=2")
        page.page.get_by_role("heading", name=f"{NAMES[1]}:0").wait_for()
        page.sees("1 nan of 8")
        page.card("Value").get_by_role("radio", name="Table").click()
        wait_until(lambda: page.page.locator("td.nan").count() == 1)


def test_a_report_of_it_runs_nothing_either(window, hostile, tmp_path):
    done = tensortap("report", hostile, "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    page = window(f"file://{tmp_path}", offline=True)
    page.go("report.html")
    page.sees("first bad value")
    page.page.get_by_role("link", name="Source").click()
    page.page.locator(".code").wait_for()
    assert page.page.evaluate("window.hacked") is None
    assert page.page.locator("main img, main script").count() == 0
