"""The pictures of the page, light and dark: `python docs/images/page.py SESSION`.

tensortap run --profile -o /tmp/session examples/sentiment.py
python docs/images/page.py /tmp/session
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tensortap.server.recorded import Viewer

HERE = Path(__file__).parent
VIEWS = {
    "page-overview": "overview?filter=model",
    "page-tensor": "tensor?name=model/encoder/div:0&run=40&rank=0",
    "page-graph": "graph?name=model/encoder/div&run=40&rank=0",
    "page-source": "source?run=40&rank=0&line=28",
}
LIGHT = ("page-overview", "page-graph", "page-source")
DARK = ("page-overview", "page-tensor")


def main(session: Path) -> None:
    """Open every view and take its picture."""
    with Viewer([session]) as viewer, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless"]
        )
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": 1240, "height": 900}, color_scheme=scheme)
            page = context.new_page()
            for name, view in VIEWS.items():
                if name not in (DARK if scheme == "dark" else LIGHT):
                    continue
                page.set_viewport_size({"width": 1240, "height": 1080 if name == "page-overview" else 900})
                page.goto(f"{viewer.http_address}/#/{session.name}/{view}")
                page.wait_for_timeout(2500)
                page.screenshot(path=HERE / f"{name}{'-dark' if scheme == 'dark' else ''}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
