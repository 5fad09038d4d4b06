"""Renders what the demo prints as the picture of the README: `python docs/images/render.py` (needs rich)."""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def main() -> None:
    """Run the demo and write the picture."""
    shown = subprocess.run(
        [sys.executable, "examples/hooks.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    shown = re.sub(r"/\S*tensortap-demo-\w+", "checkpoints", shown)
    console = Console(record=True, width=100, file=StringIO())
    console.print(Text("$ make demo\n", style="bold green"))
    console.print(Text(shown.rstrip()))
    picture = console.export_svg(title="tensortap")
    # No fonts from the network: any monospaced font will do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"\s*<!-- Generated.*?-->", "", picture)
    picture = picture.replace("<svg ", '<svg xml:space="preserve" ', 1).replace(
        "Fira Code", "DejaVu Sans Mono"
    )
    (HERE / "demo.svg").write_text(picture)


if __name__ == "__main__":
    main()
