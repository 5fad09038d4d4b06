"""A directory that TensorFlow's own debugger wrote, in the browser."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tensortap.server.recorded import Viewer
from tests.page.conftest import environment
from tests.patience import finished, wait_until
from tests.server.tools import PROJECT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow writes the directory, and is not installed",
)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    root = tmp_path_factory.mktemp("tfdbg") / "dumps"
    command = [sys.executable, "-m", "tests.reader.tf_peer", "make", str(root)]
    done = finished(command, 120, env=environment(), cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-2000:]
    return root


def test_its_answer_grid_and_values(window, dumped):
    with Viewer([dumped]) as viewer:
        page = window(viewer.http_address)
        page.go("")
        page.sees("first bad value")
        page.page.locator("canvas[data-painted]").wait_for()
        page.card("Answer").get_by_role("link", name="bad:0").click()
        page.sees("6 nan of 6")
        value = page.card("Value")
        value.get_by_role("radio", name="Table").click()
        wait_until(lambda: value.locator("td.nan").count() == 6)
        page.page.get_by_role("link", name="graph around it").click()
        page.page.locator("[data-node='sub']").wait_for()


def test_a_single_run_of_it(window, dumped):
    run = sorted(dumped.glob("run_*"))[0]
    with Viewer([run]) as viewer:
        page = window(viewer.http_address)
        page.go("")
        page.sees("first bad value")
        page.page.locator("canvas[data-painted]").wait_for()
