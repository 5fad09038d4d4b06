"""`tensortap report`: the page as one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tensortap.commands.common import open_directory, size_text
from tensortap.errors import UsageError

HELP = "write the page as one file, to mail or to keep"
DESCRIPTION = """Write one HTML file that shows a recorded directory without any server: the answer, the health of every
tensor over all runs, and everything about the first bad value: values, graph, source lines.

It is small enough to mail, loads nothing from anywhere, and is made to be attached to a bug report or kept with a
build. Source files of the program and the values around the first bad one are in it: look before you publish it.

  tensortap report dumps                        writes report.html
  tensortap report dumps -o nan.html --force    over a file that is there
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a session directory, or one run")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the file (default %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.server.page_contents import contents_of
    from tensortap.web.single_file import single_file

    directory = options.directory.expanduser()
    open_directory(directory)  # says what is wrong with it, if it is none
    if options.output.exists() and not options.force:
        raise UsageError(f"{str(options.output)!r} exists; use --force to overwrite it.")
    text = single_file(f"tensortap: {directory.absolute().name}", contents_of(directory))
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(options.output)!r} cannot be written: {error.strerror or error}.") from None
    print(f"wrote {options.output} ({size_text(len(text.encode()))})", file=sys.stderr)
    return 0
