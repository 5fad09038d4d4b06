"""`tensortap trace merge`: traces of several ranks or steps in one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from tensortap.commands.common import say, size_text
from tensortap.errors import UsageError

HELP = "put traces of several ranks or steps into one file, on one clock"
DESCRIPTION = """Put several traces into one file that opens in Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Times are aligned by the wall clock that each trace carries; a trace without one begins at zero, with a note.

  tensortap trace merge rank0/timeline-100.json rank1/timeline-100.json -o step100.json
  tensortap trace merge traces -o all.json.gz           all timelines in a directory, compressed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    merge = actions.add_parser(
        "merge",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    merge.add_argument(
        "traces", type=Path, nargs="+", metavar="TRACE", help="trace files, or directories of them"
    )
    merge.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="where to write it; .json or .json.gz",
    )
    merge.add_argument("--force", action="store_true", help="overwrite the file")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.trace_merge import merged
    from tensortap.store.trace_file import find_traces, read_trace, write_trace

    output: Path = options.output
    if not output.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{str(output)!r} must end in .json or .json.gz.")
    if output.exists() and not options.force:
        raise UsageError(f"{str(output)!r} exists; use --force to overwrite it.")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"There is no directory {str(output.parent)!r} to write to.")
    found = [path for each in options.traces for path in find_traces(each.expanduser())]
    paths = list({path.resolve(): path for path in found if path.resolve() != output.resolve()}.values())
    if len(paths) < 2:
        raise UsageError(f"One trace is nothing to merge; name two or more besides {str(output)!r}.")
    result = merged([read_trace(path) for path in paths])
    try:
        size = write_trace(output, result.events, result.facts)
    except OSError as error:
        raise UsageError(f"{str(output)!r} cannot be written: {error.strerror or error}.") from None
    say(result.notices)
    print(f"wrote {len(paths)} traces, {len(result.events)} events ({size_text(size)}) to {output}")
    return 0
