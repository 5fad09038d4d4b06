"""The page over finished directories, in a real browser: from the answer to the value and the line."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

from tensortap.server.recorded import Viewer
from tests.page.conftest import tensortap
from tests.patience import wait_until


@pytest.fixture(scope="module")
def viewer(recorded):
    with Viewer([recorded]) as running:
        yield running


@pytest.fixture
def page(window, viewer):
    return window(viewer.http_address)


def words(text):
    return re.sub(r"\s+", " ", text)


def test_the_answer_has_the_words_of_why(page, recorded):
    page.go("#/session/overview")
    card = page.card("Answer")
    card.wait_for()
    shown = words(card.inner_text())
    told = tensortap("why", recorded, "--wide").stdout
    body, _, _ = told.partition("  next ")
    for line in body.splitlines():
        for part in re.split(r"\s{2,}", line.strip(" │")):
            assert words(part) in shown, part


def test_from_the_answer_to_value_and_line_by_clicking(page):
    page.go("")
    page.card("Answer").get_by_role("link", name="model/encoder/div:0").click()
    page.sees("32 nan of 512")
    value = page.card("Value")
    value.get_by_role("radio", name="Table").click()
    wait_until(lambda: value.locator("td.nan").count() == 10)  # of 32, as many as the window has columns
    row = value.locator("tbody tr").nth(3)
    assert row.locator("td").all_inner_texts() == ["NaN"] * 10
    value.get_by_label("Slice, such as 0, -1, ::2").fill("3, ::8")
    value.get_by_label("Slice, such as 0, -1, ::2").press("Enter")
    wait_until(lambda: value.locator("td").all_inner_texts() == ["NaN"] * 4)
    page.page.get_by_role("link", name="sentiment.py:28").click()
    chosen = page.page.locator(".line.chosen")
    chosen.wait_for()
    assert chosen.locator("bdi").inner_text().strip() == "return words.sum(dim=1) / present.sum(dim=1)"
    assert chosen.locator(".gutter").inner_text() == "✗"
    page.page.locator("aside").get_by_role("link", name="model/encoder/div", exact=True).click()
    page.page.get_by_role("heading", name="model/encoder/div:0").wait_for()


def test_the_value_is_downloaded_as_a_numpy_file(page):
    page.go("#/session/tensor?name=model/encoder/div:0&run=40")
    with page.page.expect_download() as waiting:
        page.page.get_by_role("button", name="Download .npy").click()
    array = np.load(io.BytesIO(waiting.value.path().read_bytes()))
    assert array.shape == (16, 32)
    assert np.flatnonzero(np.isnan(array).any(1)).tolist() == [3]


def test_the_grid_shows_where_it_began(page):
    page.go("#/session/overview")
    page.page.locator("canvas[data-painted]").wait_for()
    assert page.page.get_by_role("treeitem").count() > 10
    page.page.get_by_role("radio", name="First bad").click()
    first = page.page.get_by_role("treeitem").first
    wait_until(lambda: first.inner_text() == "model/encoder/div:0")
    canvas = page.page.locator(".cells canvas")
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] - 3, "y": 5})
    assert "NaN" in page.page.locator(".tip").inner_text()
    canvas.hover(position={"x": 3, "y": 5})
    assert "NaN" not in page.page.locator(".tip").inner_text()
    canvas.click(position={"x": box["width"] - 3, "y": 5})
    page.page.get_by_role("heading", name="Value at run 59").wait_for()


def test_the_grid_zooms_pans_and_filters_and_the_address_keeps_it(page):
    page.go("#/session/overview")
    page.page.locator("canvas[data-painted]").wait_for()
    page.page.get_by_role("button", name="Zoom in").click()
    page.page.get_by_role("button", name="Zoom in").click()
    page.page.keyboard.press("ArrowRight")
    page.card("Filter by name").fill("encoder/norm")
    wait_until(lambda: "filter=encoder" in page.page.url and "from=" in page.page.url)
    rows = page.page.get_by_role("treeitem").all_inner_texts()
    assert rows
    page.page.reload()
    page.page.locator("canvas[data-painted]").wait_for()
    assert page.page.get_by_role("treeitem").all_inner_texts() == rows
    assert page.card("Filter by name").input_value() == "encoder/norm"


def test_the_graph_is_walked_by_clicking(page):
    page.go("#/session/graph?name=model/encoder/div&run=40")
    box = page.page.locator("[data-node='model/encoder/div']")
    box.wait_for()
    assert "bad" in box.get_attribute("class")
    assert "good" in page.page.locator("[data-node='model/encoder/sum_1']").get_attribute("class")
    page.sees("Its way to the loss: 3 steps")
    page.page.locator("[data-node='model/encoder/sum_1']").press("Enter")
    page.page.get_by_role("heading", name="model/encoder/sum_1").wait_for()


def test_timelines(page):
    page.go("#/session/timelines")
    page.sees("Memory over the step")
    assert page.page.locator("table.slow tbody tr").count() == 30
    with page.page.expect_download() as waiting:
        page.page.get_by_role("button", name="Download").click()
    assert b"traceEvents" in waiting.value.path().read_bytes()


def test_a_tensor_without_a_value_says_so(page):
    page.go("#/session/tensor?name=model/encoder/embed/embedding:0&run=5")
    page.sees(re.compile("Only the health of .* was recorded"))
    page.sees("Over 53 runs")


def test_keys_lead_through_the_views(page):
    page.go("#/session/overview")
    page.card("Answer").wait_for()
    page.page.keyboard.press("s")
    page.page.locator(".code").wait_for()
    page.page.keyboard.press("?")
    page.sees("zoom in, out, everything", "dialog")


def test_on_a_phone_nothing_is_wider_than_the_screen(window, viewer):
    page = window(viewer.http_address, viewport={"width": 390, "height": 800}, has_touch=True)
    for view in (
        "overview",
        "tensor?name=model/encoder/div:0&run=40",
        "source?run=40",
        "graph?name=model/encoder/div",
    ):
        page.go(f"#/session/{view}")
        page.page.wait_for_timeout(400)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 390, view


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Three good runs with all their values."""
    place = tmp_path_factory.mktemp("healthy")
    program = place / "train.py"
    program.write_text(
        "import torch\nmodel = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n    model(torch.ones(4, 2)).mean().backward()\n    opt.step()\n"
    )
    done = tensortap("run", "--values", "-o", place / "good", program)
    assert done.returncode == 0, done.stderr
    with Viewer([place / "good"]) as viewer:
        yield viewer


def test_a_healthy_session_says_so_and_since_when(window, healthy):
    page = window(healthy.http_address)
    page.go("")
    page.sees("✓ healthy")
    page.sees("since")


def test_a_value_beside_that_of_another_run(window, healthy):
    page = window(healthy.http_address)
    page.go("#/good/tensor?name=model/addmm:0&run=0&look=histogram")
    page.page.get_by_label("run", exact=True).fill("2")
    page.page.get_by_role("button", name="Compare").click()
    figures = page.page.locator("figure")
    wait_until(lambda: figures.count() == 3)
    assert figures.locator("figcaption").all_inner_texts() == ["run 0", "run 2", "difference"]
    # Gradients of a mean over equal rows are the same in every run, so outputs fall by the same amount.
    assert re.search(r"min (\S+) max \1 ", words(figures.nth(2).inner_text()))
