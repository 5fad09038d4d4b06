"""What the page costs over a session of many runs: the first paint, a pan or a zoom, the server's memory.

    python benchmarks/page.py                              10,000 runs of 2,000 tensors, made in a temporary directory
    python benchmarks/page.py --runs 1000 --tensors 500
    python benchmarks/page.py --session DIR                measure one that is there

The session is written by the store that training uses. Chromium opens the page of a `tensortap view` that was started a
moment ago, waits until the grid is painted, and when everything was read pans and zooms it: from the key
that is pressed until the grid is painted as it is to be seen then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from page_session import make_session
from playwright.sync_api import sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
CHROMIUM = "/usr/bin/chromium"
KEYS = ["+", "+", "ArrowRight", "+", "ArrowLeft", "-", "ArrowRight", "-", "+", "ArrowLeft", "-", "-"]

MARK = "performance.getEntriesByName('{}').at(-1)?.startTime ?? 0"


def marked(page, name: str, after: float = 0.0) -> float:
    """When the page has marked that something was painted, in milliseconds since it was asked for."""
    give_up = time.monotonic() + 60
    while (found := page.evaluate(MARK.format(name))) <= after:
        if time.monotonic() > give_up:
            raise TimeoutError(f"The page does not say {name!r}.")
        time.sleep(0.002)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--tensors", type=int, default=2_000)
    parser.add_argument("--session", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        session = options.session or Path(folder) / "session"
        if options.session is None:
            make_session(str(session), options.runs, options.tensors)
        measure(session)


def measure(session: Path) -> None:
    command = [sys.executable, "-m", "tensortap", "view", str(session), "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://\S+", server.stderr.readline())[0].rstrip("/")
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                look(browser, address, server.pid, session.name)
                browser.close()
        finally:
            server.terminate()


def look(browser, address: str, pid: int, job: str) -> None:
    page = browser.new_page(viewport={"width": 1360, "height": 850})
    page.goto(address + "/healthz")  # the browser is warm, the server has read nothing
    page.goto(address)
    cold = marked(page, "grid first painted")
    print(f"first paint of the grid, server just started: {cold:.0f} ms")
    began = time.monotonic()
    while state(address, job)["progress"] < 1 or state(address, job, "answer")["state"] == "searching":
        time.sleep(0.5)
    print(f"everything read and the answer found after another {time.monotonic() - began:.1f} s")
    warm = []
    for _ in range(5):
        other = browser.new_page(viewport={"width": 1360, "height": 850})
        other.goto(address)
        warm.append(marked(other, "grid first painted"))
        other.close()
    print(f"first paint of the grid, later visits: {statistics.median(warm):.0f} ms (median of {len(warm)})")
    grid = state(address, job)
    print(f"grid: {len(grid['tensors']):,} tensors × {grid['runs']:,} runs")
    page.locator("[role=tree]").focus()
    times = []
    for key in KEYS * 4:
        start = page.evaluate("performance.now()")
        page.keyboard.press(key)
        times.append(marked(page, "grid painted", start) - start)
    deciles = statistics.quantiles(times, n=10)
    print(
        f"pan or zoom until painted: median {statistics.median(times):.0f} ms, nine of ten within {deciles[-1]:.0f} ms"
    )
    asked = {
        "task": 0,
        "rows": [[[a * 33, a * 33 + 33]] for a in range(60)],
        "from": 0,
        "to": 10_000,
        "columns": 2_000,
    }
    spans = []
    for _ in range(20):
        start = time.perf_counter()
        post(f"{address}/api/jobs/{job}/grid", asked)
        spans.append(1000 * (time.perf_counter() - start))
    print(
        f"the largest tile, all runs of all tensors, at the server: median {statistics.median(spans):.0f} ms"
    )
    print(f"memory of the server: {resident(pid):.0f} MB, at most {resident(pid, 'VmHWM'):.0f} MB")


def state(address: str, job: str, what: str = "grid"):
    with urllib.request.urlopen(f"{address}/api/jobs/{job}/{what}") as answer:
        return json.load(answer)


def post(address: str, body) -> None:
    request = urllib.request.Request(address, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request) as answer:
        answer.read()


def resident(pid: int, field: str = "VmRSS") -> float:
    found = re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else os.nan


if __name__ == "__main__":
    main()
