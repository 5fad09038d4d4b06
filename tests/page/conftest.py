"""A real browser: Debian's Chromium, driven by Playwright; and what the tests of the page look at with it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.patience import finished, patient
from tests.server.tools import PROJECT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def why_not():
    """What is missing for a browser, or nothing."""
    missing = (
        [] if importlib.util.find_spec("playwright") else ["playwright (pip install 'tensortap[viewer]')"]
    )
    if CHROMIUM is None:
        missing.append("chromium (make browser, or apt-get install chromium)")
    return f"the page needs a browser: {', '.join(missing)}" if missing else ""


class Window:
    """A page in the browser that must behave: no error, no warning, no request to anybody else."""

    def __init__(self, page, address):
        self.page = page
        self.address = address.rstrip("/")
        self.complaints = []
        self.requests = []
        page.on("console", lambda message: self._heard(message))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.set_default_timeout(patient(20) * 1000)

    def _heard(self, message):
        # What the browser itself says of a request that was refused is no fault of the page.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def go(self, place):
        """Open a view by its address."""
        self.page.goto(f"{self.address}/{place}")

    def card(self, label):
        """A part of the page by its label."""
        return self.page.get_by_label(label, exact=True)

    def text(self, selector="main"):
        return self.page.locator(selector).inner_text()

    def sees(self, text, selector="main"):
        """Wait until a text is there."""
        self.page.locator(selector).get_by_text(text).first.wait_for()

    def strangers(self):
        """Requests that went elsewhere."""
        return [url for url in self.requests if not url.startswith((self.address, "blob:", "data:"))]

    def behaved(self):
        assert self.complaints == []
        assert self.strangers() == []


@pytest.fixture(scope="session")
def chromium():
    if reason := why_not():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def window(chromium):
    """Opens windows, and looks after the test whether all of them behaved."""
    opened = []

    def open_window(address, **options):
        context = chromium.new_context(**{"viewport": {"width": 1360, "height": 850}, **options})
        found = Window(context.new_page(), address)
        opened.append((context, found))
        return found

    yield open_window
    for context, found in opened:
        context.close()
        found.behaved()


def environment():
    paths = f"{PROJECT / 'src'}{os.pathsep}{PROJECT}"
    return {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}


def tensortap(*arguments, seconds=120, **options):
    """A command of ours that has ended."""
    command = [sys.executable, "-m", "tensortap", *map(str, arguments)]
    return finished(command, seconds, env=environment(), **options)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A session of a real program that goes bad at step 40, with timelines."""
    place = tmp_path_factory.mktemp("recorded") / "session"
    done = tensortap("run", "--profile", "-o", place, PROJECT / "examples" / "sentiment.py")
    assert "first bad value" in done.stderr, done.stderr
    return Path(place)
