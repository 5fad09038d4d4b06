"""Renders what the demo shows in a terminal as the picture of the README: `python docs/images/render.py`."""

from __future__ import annotations

import os
import pty
import re
import struct
import sys
import tempfile
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COLUMNS = 84
PROGRAM = "examples/sentiment.py"


def in_a_terminal(command: list[str]) -> str:
    """What a command prints in a terminal of its own."""
    process, terminal = pty.fork()
    if process == 0:
        ioctl(1, TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
        os.chdir(ROOT)
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)})
    printed = b""
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # the end of a terminal
            break
        if not more:
            break
        printed += more
    os.waitpid(process, 0)
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    """Run the demo and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        directory = f"{folder}/nan"
        shown = in_a_terminal([sys.executable, "-m", "tensortap", "run", "-o", directory, PROGRAM])
    shown = shown.replace(directory, "nan").strip("\n")
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), (f"tensortap run -o nan {PROGRAM}", "bold")))
    console.print(Text.from_ansi(shown))
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
