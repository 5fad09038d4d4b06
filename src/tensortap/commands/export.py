"""`tensortap export`: a run in a format that other tools read."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tensortap.commands.common import add_run_arguments, open_directory, open_run, say
from tensortap.errors import UsageError

HELP = "write a run as a tfdbg directory, npz, safetensors or parquet"
DESCRIPTION = """Write a run in a format that other tools read.

  tensortap export dumps --run 3 --to tfdbg -o run3         a directory TensorFlow's debugger opens
  tensortap export dumps --run 3 -o run3.npz                the suffix says the format
  tensortap export dumps --run 3 -o run3.safetensors
  tensortap export dumps -o health.parquet                  health of all runs (or of one, with --run)
"""

FORMATS = ("tfdbg", "npz", "safetensors", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument("--to", choices=FORMATS, help="the format (default: the suffix of the output)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PATH", help="where to write it")
    parser.add_argument("--force", action="store_true", help="replace what an earlier export wrote there")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.store.export import export_npz, export_parquet, export_safetensors
    from tensortap.store.export_tfdbg import export_tfdbg

    output: Path = options.output
    kind = options.to or output.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"Say the format with --to: {', '.join(FORMATS)}.")
    source = _source(options, kind)
    _check_output(output, options, is_directory=kind == "tfdbg")
    writers = {
        "tfdbg": export_tfdbg,
        "npz": export_npz,
        "safetensors": export_safetensors,
        "parquet": export_parquet,
    }
    # Written beside its place and moved there at the end, so that a failure leaves the old one alone.
    with tempfile.TemporaryDirectory(prefix=".tensortap-export-", dir=output.absolute().parent) as folder:
        made = Path(folder) / output.name
        report = writers[kind](source, made)
        if output.is_dir():
            shutil.rmtree(output)
        os.replace(made, output)
    say(_shortened(report.notices))
    if kind == "parquet" and not report.written:
        say(["There are no health pills here; dump with DebugNumericSummary to have them."])
    print(f"wrote {report.written} records to {output}")
    return 0


def _source(options: argparse.Namespace, kind: str) -> Any:
    """What to export: one run, or for health all of them."""
    from tensortap.reader import SessionDir

    if kind != "parquet" or options.run is not None:
        return open_run(options)
    found = open_directory(options.directory)
    return [ref.open(validate=False) for ref in found] if isinstance(found, SessionDir) else found


def _check_output(output: Path, options: argparse.Namespace, is_directory: bool) -> None:
    source, target = options.directory.expanduser().resolve(), output.resolve()
    if target == source or target in source.parents or source in target.parents:
        raise UsageError(
            f"{str(output)!r} and {str(options.directory)!r} lie within each other; export elsewhere."
        )
    if not output.absolute().parent.is_dir():
        raise UsageError(f"There is no directory {str(output.parent)!r} to write to.")
    if not output.exists():
        return
    if output.is_dir() != is_directory:
        raise UsageError(
            f"{str(output)!r} is a {'directory' if output.is_dir() else 'file'}; name another place."
        )
    if not options.force:
        raise UsageError(f"{str(output)!r} exists; use --force to replace it.")
    if is_directory and any(output.iterdir()) and not any(output.glob("_tfdbg_*")):
        raise UsageError(f"{str(output)!r} holds something else than an export; it is not replaced.")


def _shortened(notices: list[str]) -> list[str]:
    """Notices of one kind, said once with their number."""
    kinds = Counter(notice.partition(" was ")[2] or notice for notice in notices)
    first = {notice.partition(" was ")[2] or notice: notice for notice in reversed(notices)}
    return [first[kind] + (f" So were {n - 1} others." if n > 1 else "") for kind, n in kinds.items()]
