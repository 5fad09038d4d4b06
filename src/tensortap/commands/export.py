"""`tensortap export`: a run in a format that other tools read."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from tensortap.commands.common import add_run_arguments, open_directory, open_run, say

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
    parser.add_argument("--force", action="store_true", help="replace what is there")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.store.export import export_npz, export_parquet, export_safetensors
    from tensortap.store.export_tfdbg import export_tfdbg

    kind = options.to or options.output.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"Say the format with --to: {', '.join(FORMATS)}.")
    output: Path = options.output
    if output.exists():
        if not options.force:
            raise ValueError(f"{str(output)!r} exists; use --force to replace it.")
        shutil.rmtree(output) if output.is_dir() else output.unlink()
    source: Any
    if kind == "parquet" and options.run is None:
        source = open_directory(options.directory)
        source = getattr(source, "root", source)
    else:
        source = open_run(options)
    writers = {
        "tfdbg": export_tfdbg,
        "npz": export_npz,
        "safetensors": export_safetensors,
        "parquet": export_parquet,
    }
    report = writers[kind](source, output)
    say(report.notices)
    print(f"wrote {report.written} records to {output}")
    return 0
