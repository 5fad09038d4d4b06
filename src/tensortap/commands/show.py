"""`tensortap show`: one tensor."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_output_arguments,
    add_run_arguments,
    open_run,
    print_json,
    print_table,
    run_name,
    say,
)
from tensortap.errors import NotThereError, UsageError
from tensortap.records import Frame

if TYPE_CHECKING:
    from tensortap.analyze.health import Health
    from tensortap.analyze.values import FoundRecord
    from tensortap.reader import DebugDumpDir, DebugTensorDatum

HELP = "show one tensor: values, slices, numbers"
DESCRIPTION = """Show what was recorded of one tensor: value or summary, op, inputs and source line.

  tensortap show dumps model/attn/softmax:0                  of the last run
  tensortap show dumps 'model/attn/softmax:0[0, -1, ::2]'    part of it
  tensortap show dumps model/fc/addmm:0 --run 3 -o x.npy     into a file
"""

ELEMENTS_SHOWN = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument("tensor", metavar="TENSOR", help="node:slot, with slices behind it if you like")
    parser.add_argument("--op", metavar="DEBUG_OP", help="which record, when there are several")
    parser.add_argument(
        "-e",
        "--execution",
        type=int,
        default=-1,
        metavar="N",
        help="which execution of several (default last)",
    )
    parser.add_argument("-a", "--all", action="store_true", help="print all elements")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.npy", help="write the value to a file")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.listing import RecordRow
    from tensortap.analyze.numbers import summarize
    from tensortap.analyze.slicing import split_slices

    name, slices = split_slices(options.tensor)
    dump = open_run(options, name, recorded=True)
    found = _find(dump, name, options)
    datum = found.datum
    is_array = hasattr(datum.get_tensor(), "dtype")
    if slices and datum.debug_op != "DebugIdentity":
        raise UsageError(f"Only {datum.debug_op} of {name!r} was recorded; slices need DebugIdentity.")
    value: Any = found.value() if is_array else datum.get_tensor()
    if options.output is not None:
        write_value(value, options.output, options.force)
    pill = RecordRow(dump, datum).pill
    facts = _facts(dump, datum, value, pill, found.executions)
    summary = None
    if is_array and datum.debug_op == "DebugIdentity":
        numbers = summarize(value)
        summary = None if numbers is None else asdict(numbers)
    elif pill is not None:
        summary = _finite_numbers(pill)
    if options.json:
        shown = value.tolist() if is_array and (options.all or value.size <= ELEMENTS_SHOWN) else None
        print_json({**facts, "summary": summary, "value": shown, "notices": dump.notices})
        return 0
    print_table(("", ""), [(f"{key}:", text) for key, text in facts.items() if text not in ("", [], None)])
    if summary is not None:
        print()
        for chunk in _chunks({key: _number(each) for key, each in summary.items()}):
            print_table(list(chunk), [list(chunk.values())], right=list(chunk))
    if datum.debug_op != "DebugNumericSummary" or slices:
        print()
        print_value(value, show_all=options.all)
    say(dump.notices)
    return 0


def _find(dump: DebugDumpDir, name: str, options: argparse.Namespace) -> FoundRecord:
    from tensortap.analyze.names import meant
    from tensortap.analyze.values import NoSuchTensor, find_value

    try:
        return find_value(dump, options.tensor, options.op, options.execution)
    except NoSuchTensor as error:
        hint = meant(error.tensor, error.names)
        raise UsageError(f"{run_name(dump)} has no tensor {name!r}.{hint}") from None
    except NotThereError as error:
        raise UsageError(str(error)) from None


def _facts(
    dump: DebugDumpDir, datum: DebugTensorDatum, value: Any, pill: Health | None, executions: int
) -> dict[str, Any]:
    dtype, shape = _form(dump, datum, value, pill)
    facts: dict[str, Any] = {
        "tensor": datum.tensor_name,
        "run": run_name(dump).removeprefix("Run "),
        "debug op": datum.debug_op,
        "device": datum.device_name,
        "dtype": dtype,
        "shape": shape,
        "executions": executions if executions > 1 else None,
    }
    try:
        facts["part"] = _part(dump, datum)
        facts["op"] = dump.node_op_type(datum.node_name, datum.device_name)
        facts["inputs"] = ", ".join(dump.node_inputs(datum.node_name, device_name=datum.device_name))
        stack = dump.node_traceback(datum.node_name)
        facts["line"] = str(Frame(*stack[-1][:3])) if stack else None
    except (LookupError, ValueError):
        pass  # the graph of a run that died is not there; the value is
    return facts


def _part(dump: DebugDumpDir, datum: DebugTensorDatum) -> str | None:
    """Which part of a sharded tensor this is, and of whom."""
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.records import Shard

    node = facts_of_dump(dump).nodes.get(datum.node_name.removeprefix("gradients/"))
    shard = None if node is None else Shard.of_attributes(node.attributes)
    if node is None or shard is None:
        return None
    rank = datum.device_name.partition("task:")[2].partition("/")[0]
    where = ", ".join(f"{dim}: {place}" for dim, place in zip(shard.mesh, shard.coordinate, strict=False))
    return f"{shard.on_rank(rank, node.name)} ({', '.join(shard.placement)} on {where})"


def _form(
    dump: DebugDumpDir, datum: DebugTensorDatum, value: Any, pill: Health | None
) -> tuple[str, list[int | None]]:
    """Dtype and shape of the tensor itself, whatever was recorded of it; empty if that is not known."""
    from tensortap.analyze.facts import facts_of_dump

    if datum.debug_op == "DebugIdentity":
        return str(getattr(value, "dtype", "")), list(getattr(value, "shape", ()))
    spec = facts_of_dump(dump).spec(datum.tensor_name)
    if pill is not None:
        return pill.dtype or ("" if spec is None else spec.dtype), list(pill.shape or ())
    return ("", []) if spec is None else (spec.dtype, list(spec.shape))


def _finite_numbers(pill: Health) -> dict[str, Any]:
    """What a pill says in numbers, whole ones as such."""
    from tensortap.analyze.listing import pill_numbers

    numbers = {
        key: each for key, each in pill_numbers(pill).items() if key != "dtype" and math.isfinite(each)
    }
    return {key: int(each) if each == int(each) else each for key, each in numbers.items()}


def _chunks(numbers: dict[str, str]) -> Iterator[dict[str, str]]:
    """Numbers with their names, as many at a time as fit beside each other."""
    from tensortap.report.page import screen_width

    room = screen_width() or sys.maxsize
    chunk: dict[str, str] = {}
    used = 0
    for key, text in numbers.items():
        width = max(len(key), len(text)) + 2
        if chunk and used + width > room:
            yield chunk
            chunk, used = {}, 0
        chunk[key] = text
        used += width
    if chunk:
        yield chunk


def print_value(value: Any, *, show_all: bool = False) -> None:
    """Print an array, shortened unless all of it is wanted."""
    import numpy as np

    from tensortap.report.page import screen_width

    threshold = sys.maxsize if show_all else ELEMENTS_SHOWN
    with np.printoptions(threshold=threshold, linewidth=min(screen_width() or 110, 110), suppress=True):
        print(value)


def write_value(value: Any, output: Path, force: bool) -> None:
    """Write an array to a file that must not be there yet."""
    import numpy as np

    from tensortap.analyze.values import storable

    if output.exists() and not force:
        raise UsageError(f"{str(output)!r} exists; use --force to overwrite it.")
    array = storable(value)
    if array is None:
        raise UsageError("This tensor has no value that could be written.")
    if array.dtype != value.dtype:
        say([f"{value.dtype} is written as {array.dtype}, which NumPy files can hold"])
    with open(output, "wb") as file:
        np.save(file, array, allow_pickle=False)


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
