"""`tensortap show`: one tensor."""

from __future__ import annotations

import argparse
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
from tensortap.errors import UsageError

if TYPE_CHECKING:
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
    from tensortap.analyze.numbers import summarize
    from tensortap.analyze.slicing import split_slices

    name, slices = split_slices(options.tensor)
    dump = open_run(options, name, recorded=True)
    datum, others = _find(dump, name, options)
    value: Any = datum.get_tensor()
    plain = hasattr(value, "dtype")
    if slices and datum.debug_op != "DebugIdentity":
        raise UsageError(f"Only {datum.debug_op} of {name!r} was recorded; slices need DebugIdentity.")
    if plain and slices:
        try:
            value = value[slices]
        except IndexError as error:
            raise UsageError(f"{options.tensor!r}: {error} (its shape is {list(value.shape)}).") from None
    if options.output is not None:
        write_value(value, options.output, options.force)
    facts = _facts(dump, datum, value, others)
    summary = None
    if plain and datum.debug_op == "DebugIdentity":
        found = summarize(value)
        summary = None if found is None else asdict(found)
    elif plain and datum.debug_op == "DebugNumericSummary" and not slices:
        summary = _pill_as_dict(value)
    if options.json:
        shown = value.tolist() if plain and (options.all or value.size <= ELEMENTS_SHOWN) else None
        print_json({**facts, "summary": summary, "value": shown, "notices": dump.notices})
        return 0
    print_table(("", ""), [(f"{key}:", text) for key, text in facts.items() if text not in ("", [], None)])
    if summary is not None:
        print()
        for numbers in _chunks({key: _number(each) for key, each in summary.items()}):
            print_table(list(numbers), [list(numbers.values())], right=list(numbers))
    if datum.debug_op != "DebugNumericSummary" or slices:
        print()
        print_value(value, show_all=options.all)
    say(dump.notices)
    return 0


def _find(
    dump: DebugDumpDir, name: str, options: argparse.Namespace
) -> tuple[DebugTensorDatum, list[DebugTensorDatum]]:
    from tensortap.analyze.names import meant

    full = name if ":" in name else f"{name}:0"
    data = [datum for datum in dump.dumped_tensor_data if datum.tensor_name == full]
    if not data:
        names = {datum.tensor_name for datum in dump.dumped_tensor_data}
        hint = meant(full, names)
        raise UsageError(f"{run_name(dump)} has no tensor {name!r}.{hint}")
    ops = list(dict.fromkeys(datum.debug_op for datum in data))
    op = options.op or ("DebugIdentity" if "DebugIdentity" in ops else ops[0])
    if op not in ops and f"Debug{op}" in ops:  # as `ls` shows it
        op = f"Debug{op}"
    data = [datum for datum in data if datum.debug_op == op]
    if not data:
        raise UsageError(f"{full!r} has no record of {op!r}; it has {', '.join(ops)}.")
    try:
        return data[options.execution], data
    except IndexError:
        raise UsageError(
            f"{full!r} was executed {len(data)} times; there is no execution {options.execution}."
        ) from None


def _facts(
    dump: DebugDumpDir, datum: DebugTensorDatum, value: Any, others: list[DebugTensorDatum]
) -> dict[str, Any]:
    dtype, shape = _form(dump, datum, value)
    facts: dict[str, Any] = {
        "tensor": datum.tensor_name,
        "run": run_name(dump).removeprefix("Run "),
        "debug op": datum.debug_op,
        "device": datum.device_name,
        "dtype": dtype,
        "shape": shape,
        "executions": len(others) if len(others) > 1 else None,
    }
    try:
        facts["op"] = dump.node_op_type(datum.node_name, datum.device_name)
        facts["inputs"] = ", ".join(dump.node_inputs(datum.node_name, device_name=datum.device_name))
        stack = dump.node_traceback(datum.node_name)
        facts["line"] = str(stack[-1]) if stack else None
    except (LookupError, ValueError):
        pass  # the graph of a run that died is not there; the value is
    return facts


def _form(dump: DebugDumpDir, datum: DebugTensorDatum, value: Any) -> tuple[str, list[int | None]]:
    """Dtype and shape of the tensor itself, whatever was recorded of it; empty if that is not known."""
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.analyze.health import Health
    from tensortap.dtypes import DTYPE_NAMES
    from tensortap.pill import is_pill

    if datum.debug_op == "DebugIdentity":
        return str(getattr(value, "dtype", "")), list(getattr(value, "shape", ()))
    spec = facts_of_dump(dump).spec(datum.tensor_name)
    if is_pill(datum.debug_op, value):
        health = Health.of_pill(value)
        name = DTYPE_NAMES.get(int(health.dtype_number), "" if spec is None else spec.dtype)
        return name, list(health.shape or ())
    return ("", []) if spec is None else (spec.dtype, list(spec.shape))


def _pill_as_dict(value: Any) -> dict[str, Any]:
    from tensortap.pill import PILL_COLUMNS

    pill = dict(zip(PILL_COLUMNS, (float(each) for each in value), strict=False))
    pill.pop("dtype")
    return {key: int(each) if each == int(each) else each for key, each in _finite(pill).items()}


def _finite(pill: dict[str, float]) -> dict[str, Any]:
    return {key: each for key, each in pill.items() if each == each and abs(each) != float("inf")}


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

    if output.exists() and not force:
        raise UsageError(f"{str(output)!r} exists; use --force to overwrite it.")
    if not hasattr(value, "dtype"):
        raise UsageError("This tensor has no value that could be written.")
    array = np.asarray(value)
    if array.dtype.kind == "V":
        print(f"note: {array.dtype} is written as float32, which NumPy files can hold", file=sys.stderr)
        array = array.astype(np.float32)
    with open(output, "wb") as file:
        np.save(file, array, allow_pickle=False)


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
