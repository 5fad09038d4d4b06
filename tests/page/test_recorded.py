"""The page over finished directories, in a real browser: from the answer to the value and the line."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

from tensortap.records import RunInfo
from tensortap.server.recorded import Viewer
from tensortap.store import SessionStore
from tests.page.conftest import tensortap
from tests.patience import wait_until
from tests.server.tools import pill, summary


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Three ranks, of which the last goes its own way in run 2."""
    place = tmp_path_factory.mktemp("several") / "ranks"
    with SessionStore(place) as store:
        for rank in range(3):
            for index in range(4):
                info = RunInfo(index, 10 * index, 1000 + 10 * index + rank, task=rank)
                with store.new_run(info) as run:
                    drift = 0.25 * (rank == 2 and index >= 2)
                    run.write(summary("model/w", pill(mean=index + drift), rank, 2000 + index))
                    run.write(summary("model/act", pill(mean=rank), rank, 3000 + index))
                    run.finish({}, {})
    return place


@pytest.fixture(scope="module")
def viewer(recorded, ranks):
    with Viewer([recorded, ranks]) as running:
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
    tip = page.page.locator(".tip")
    canvas.hover(position={"x": box["width"] - 3, "y": 5})
    wait_until(lambda: "NaN" in "".join(tip.all_inner_texts()))
    canvas.hover(position={"x": 3, "y": 5})
    wait_until(lambda: tip.count() and "NaN" not in tip.inner_text())
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


def test_what_is_folded_is_in_the_address(page):
    page.go("#/session/overview?filter=model/")
    page.page.locator("canvas[data-painted]").wait_for()
    rows = page.page.get_by_role("treeitem")
    module = rows.filter(has_text=re.compile("^[▾▸]model"))
    assert module.get_attribute("aria-expanded") == "true"
    module.click()
    wait_until(lambda: module.get_attribute("aria-expanded") == "false")
    page.page.reload()
    page.page.locator("canvas[data-painted]").wait_for()
    assert module.get_attribute("aria-expanded") == "false"
    # The first bad value is inside: going there opens it again, for whoever follows the link.
    page.page.get_by_role("button", name="First bad").click()
    page.page.locator(".label.chosen", has_text="div:0").wait_for()
    page.page.reload()
    rows.filter(has_text=re.compile("^div:0")).first.wait_for()


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


PERFETTO = """<script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else document.title = `${event.data.perfetto.title} ${event.data.perfetto.buffer.byteLength > 1000}`;
});
</script>"""


def test_a_timeline_is_handed_to_perfetto_in_a_tab_of_its_own(page):
    """What is asked for at its address here speaks as Perfetto's page does: https://perfetto.dev/docs, deep linking."""
    page.page.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=PERFETTO, content_type="text/html")
    )
    page.go("#/session/timelines?trace=1&by=lines")
    page.page.reload()
    wait_until(lambda: page.page.get_by_role("radio", name="Lines").get_attribute("aria-checked") == "true")
    with page.page.expect_popup() as opened:
        page.page.get_by_role("button", name="Open in Perfetto").click()
    wait_until(lambda: opened.value.title() == "timelines/timeline-20.json true")


def test_which_rank_went_its_own_way(page):
    page.go("#/ranks/ranks")
    page.sees("Rank 2 went its own way")
    assert "the same on all ranks in 2 runs before" in page.text()
    page.sees("Differ from the first compared run on")
    page.page.get_by_role("link", name="model/w:0").first.click()
    page.page.get_by_role("heading", name="model/w:0").wait_for()
    assert "run=2" in page.page.url
    assert "rank=2" in page.page.url


def test_every_view_opens_from_its_link(page):
    links = {
        "session/tensor?name=model/encoder/div:0&run=40&scale=log&look=table": "NaN",
        "session/graph?name=model/encoder/div&run=40&depth=1": "1 step away",
        "session/source?run=40&line=28": "Line 28",
        "session/timelines?trace=2": "Step 30",
        "ranks/ranks": "went its own way",
        "ranks/overview?rank=1": "Health of 2 tensors",
    }
    for link, seen in links.items():
        page.page.goto("about:blank")
        page.go(f"#/{link}")
        page.sees(seen)
        assert page.page.url.endswith(link)


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
        page.page.locator("main h1, main h2").first.wait_for()
        page.page.wait_for_timeout(300)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 390, view


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Three good runs with all their values."""
    place = tmp_path_factory.mktemp("healthy")
    program = place / "train.py"
    program.write_text(
        "import torch\nmodel = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n    image = torch.eye(8).expand(3, 8, 8) - 0.5\n"
        "    model(torch.ones(4, 2)).mean().backward()\n    opt.step()\n"
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


def test_a_value_as_an_image(window, healthy):
    page = window(healthy.http_address)
    page.go("#/good/tensor?name=sub:0&run=1")
    page.page.get_by_role("radio", name="Image").click()
    canvas = page.page.get_by_label("Image", exact=True)
    wait_until(lambda: canvas.get_attribute("width") == "8")
    read = "each => [...each.getContext('2d').getImageData(0, 0, each.width, each.height).data]"
    white, black = [255, 255, 255, 255], [0, 0, 0, 255]
    diagonal = [colour for y in range(8) for x in range(8) for colour in (white if x == y else black)]
    assert canvas.evaluate(read) == diagonal
    assert "look=image" in page.page.url
