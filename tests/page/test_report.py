"""The page as one file, opened from disk with the network off."""

from __future__ import annotations

import re

import pytest

from tests.page.conftest import tensortap
from tests.patience import wait_until


@pytest.fixture(scope="module")
def report(recorded, tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    done = tensortap("report", recorded, "-o", file)
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stderr
    return file


def test_it_is_small_enough_to_mail(report):
    assert report.stat().st_size < 1 << 20


def test_it_opens_from_disk_and_leads_to_value_and_line(window, report):
    page = window(f"file://{report.parent}", offline=True)
    page.go("report.html")
    page.sees("first bad value")
    page.page.locator("canvas[data-painted]").wait_for()
    assert page.page.get_by_role("treeitem").count() > 10
    page.card("Answer").get_by_role("link", name="model/encoder/div:0").click()
    page.sees("32 nan of 512")
    value = page.card("Value")
    value.get_by_role("radio", name="Table").click()
    wait_until(lambda: value.locator("td.nan").count() == 10)
    page.page.get_by_role("link", name="sentiment.py:28").click()
    page.page.locator(".line.chosen").wait_for()
    assert "present.sum(dim=1)" in page.page.locator(".line.chosen").inner_text()
    page.page.go_back()
    page.page.get_by_role("link", name="graph around it").click()
    page.page.locator("[data-node='model/encoder/div']").wait_for()


def test_what_is_not_in_it_says_where_it_is(window, report):
    page = window(f"file://{report.parent}", offline=True)
    page.go("report.html#/session/tensor?name=nothing:0&run=40")
    page.sees(re.compile("This is not part of the report. `tensortap view session` shows it."))


def test_a_file_is_not_overwritten_unless_asked(recorded, report):
    done = tensortap("report", recorded, "-o", report)
    assert done.returncode == 2
    assert "--force" in done.stderr
