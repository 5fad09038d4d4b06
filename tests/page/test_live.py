"""The page beside a program that trains: it finds the bad op, stops the program, changes a value, and lets it go on."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading

import pytest

from tensortap.server import DebugServer
from tests.page.conftest import environment
from tests.patience import wait_until
from tests.server.tools import PROJECT, ServeProcess


class Training:
    """The program, and the losses it prints."""

    def __init__(self, address):
        command = [sys.executable, "-m", "tests.page.training", address]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
            cwd=PROJECT,
        )
        self.losses = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.losses.append(line.split()[1])

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.fixture
def served(tmp_path):
    server = ServeProcess(tmp_path / "root", "--port", "0")
    training = Training(server.address)
    yield server, training
    training.end()
    server.process.kill()
    server.process.communicate()


def test_find_the_bad_op_stop_there_replace_the_value_and_go_on(window, served):
    server, training = served
    page = window(server.http_address)
    page.go("")  # before the first run is there: it comes by itself
    page.sees("first bad value")
    # At step 6, or later on a machine so busy that the stream was not up by then: what nobody takes is not watched.
    page.sees(re.compile(r"NaN at step ([6-9]|\d\d+)"))
    card = page.card("Answer")
    assert "Division by zero" in card.inner_text()
    card.get_by_role("link", name="div", exact=True).click()
    page.page.get_by_role("heading", name="div:0").wait_for()
    page.sees("4 nan of 12")

    page.page.get_by_role("link", name=re.compile(r"training.py:\d+")).click()
    chosen = page.page.locator(".line.chosen")
    chosen.wait_for()
    assert chosen.locator("bdi").inner_text().strip() == "share = x / total"
    page.page.go_back()

    gate = page.page.get_by_role("radiogroup", name="Gate of div:0:DebugIdentity")
    gate.get_by_role("radio", name="breakpoint").click()
    page.page.get_by_role("link", name=re.compile("Control")).click()
    waiting = page.card("Waiting")
    waiting.get_by_text("4 nan of 12").wait_for()
    assert waiting.locator(".elements").inner_text().split().count("NaN") == 4
    done = len(training.losses)
    page.page.wait_for_timeout(500)
    assert len(training.losses) <= done + 1, "it waits"
    assert set(training.losses[6:]) == {"nan"}

    waiting.get_by_label("Another value").fill("[[0, 0], 1]")
    waiting.get_by_role("button", name="Replace and go on").click()
    waiting.get_by_text("cannot be float32").wait_for()
    page.page.get_by_role("radiogroup", name="Gate of div:0:DebugIdentity").get_by_role(
        "radio", name="closed"
    ).click()
    waiting.get_by_label("Another value").fill("0.25")
    waiting.get_by_role("button", name="Replace and go on").click()
    waiting.get_by_text("Nobody waits.").wait_for()
    wait_until(lambda: len(training.losses) > done + 5, 30)
    # The step that waited has trained on the value it was given; those after it meet NaN again.
    changed = [loss for loss in training.losses[6:] if loss != "nan"]
    assert len(changed) == 1
    assert 0 < float(changed[0]) < 10
    assert training.process.poll() is None


def test_a_lost_server_is_said_and_comes_back_without_reload(window, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ("--port", "0", "--http-port", str(port))
    server = ServeProcess(tmp_path / "root", *arguments)
    page = window(server.http_address)
    page.go("")
    page.sees("Nothing was received yet")
    page.page.evaluate("window.wasHere = true")
    server.process.kill()
    server.process.communicate()
    page.sees("The server does not answer.", "body")
    server = ServeProcess(tmp_path / "root", *arguments)
    try:
        page.page.locator(".connection.live").wait_for()
        assert page.page.locator(".banner").count() == 0
        training = Training(server.address)
        try:
            page.sees("first bad value")
        finally:
            training.end()
        assert page.page.evaluate("window.wasHere")
        page.complaints = [each for each in page.complaints if "ERR_" not in each]
    finally:
        server.process.kill()
        server.process.communicate()


def test_the_token_is_asked_for_once_and_in_no_address(window, tmp_path):
    with DebugServer(tmp_path / "root", token="sesame-42") as server:
        page = window(server.http_address)
        page.go("")
        field = page.page.get_by_label("This server wants its token")
        field.fill("wrong")
        field.press("Enter")
        page.sees("That was not the token.", "body")
        field.fill("sesame-42")
        field.press("Enter")
        page.sees("Nothing was received yet")
        page.page.reload()
        page.sees("Nothing was received yet")
        assert not [url for url in [*page.requests, page.page.url] if "sesame" in url]
