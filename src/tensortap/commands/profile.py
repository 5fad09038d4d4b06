"""`tensortap profile`: where time and memory of profiled steps went."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import add_output_arguments, print_json, print_table, say, size_text
from tensortap.errors import UsageError

if TYPE_CHECKING:
    from tensortap.analyze.timeline import Op, Peak, StepTrace, Total

HELP = "where time and memory of profiled steps went: ops, modules, lines, peak"
DESCRIPTION = """Sum up the timelines that ProfilerHook wrote: time by phase, op, module and source line, memory, and
the peak with the tensors that make it. Several traces are averaged over their steps.

  tensortap profile traces                       all timelines in a directory
  tensortap profile traces/timeline-100.json     one step
  tensortap profile traces --by line --top 30    one question only, a longer answer
  tensortap profile traces --json                for programs; times in microseconds
"""

_PHASES = ("forward", "backward", "optimizer")

SECTIONS = ("phase", "op", "node", "module", "line", "memory", "peak")
USUAL_SECTIONS = ("phase", "op", "module", "line", "memory", "peak")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "traces", type=Path, nargs="+", metavar="DIR|FILE", help="timelines, or directories of them"
    )
    parser.add_argument("--by", choices=SECTIONS, help="answer this only (default: all but node)")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="how many of each (default 10; 0: all)"
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.timeline import read_step
    from tensortap.store.trace_file import find_traces, read_trace

    if options.top < 0:
        raise UsageError(f"--top takes how many to show, got {options.top}.")
    found = [path for each in options.traces for path in find_traces(each.expanduser())]
    paths = list({path.resolve(): path for path in found}.values())
    traces = [read_step(read_trace(path)) for path in paths]
    sections = {name: _SECTIONS[name](traces) for name in ((options.by,) if options.by else USUAL_SECTIONS)}
    top = options.top or None
    if options.json:
        print_json({**_heading(traces), **{name: _as_json(rows, top) for name, rows in sections.items()}})
        return 0
    print(_headline(traces))
    for name, rows in sections.items():
        if rows:
            print()
            _PRINTERS[name](rows, top)
    say(_notices(traces, sections, options.by))
    return 0


# --- sections: what is asked -----------------------------------------------------------------------


def _by_phase(traces: Sequence[StepTrace]) -> list[Any]:
    from tensortap.analyze.timeline import time_by

    found = time_by(traces, lambda op: op.phase)
    if not found:
        return []
    return sorted(found, key=lambda total: [*_PHASES, total.key].index(total.key))


def _by_op(traces: Sequence[StepTrace]) -> list[Any]:
    from tensortap.analyze.timeline import time_by

    return time_by(traces, lambda op: op.op_type)


def _by_node(traces: Sequence[StepTrace]) -> list[Any]:
    from tensortap.analyze.timeline import time_by

    return time_by(traces, lambda op: op.node)


def _by_module(traces: Sequence[StepTrace]) -> list[Any]:
    from tensortap.analyze.timeline import time_by, within_modules

    found = time_by(traces, _module_or_optimizer)
    whole = within_modules(found)
    return [(total, whole[total.key]) for total in found]


def _module_or_optimizer(op: Op) -> str:
    """The module of an op; an optimizer that treats all parameters at once is in none, and stands for itself."""
    return op.module or ("/".join(op.node.split("/")[:2]) if op.phase == "optimizer" else "")


def _by_line(traces: Sequence[StepTrace]) -> list[Any]:
    from tensortap.analyze.timeline import time_by

    return time_by(traces, lambda op: op.line)


def _by_memory(traces: Sequence[StepTrace]) -> list[Any]:
    from tensortap.analyze.timeline import memory_by

    return memory_by(traces, lambda op: op.op_type)


def _by_peak(traces: Sequence[StepTrace]) -> list[Any]:
    from tensortap.analyze.timeline import peaks

    return peaks(traces)


_SECTIONS = {
    "phase": _by_phase,
    "op": _by_op,
    "node": _by_node,
    "module": _by_module,
    "line": _by_line,
    "memory": _by_memory,
    "peak": _by_peak,
}


# --- as text ---------------------------------------------------------------------------------------


def _headline(traces: Sequence[StepTrace]) -> str:
    facts = _heading(traces)
    parts = [part for trace in traces for part in trace.parts]
    numbers = sorted({step for step, _ in parts if step is not None})
    ranks = sorted({rank for _, rank in parts if rank is not None})
    steps = facts["steps"]
    named = f"step{'s' if len(numbers) > 1 else ''} {_shortened(numbers)}"
    who = named if numbers else _counted(steps, "step")
    if len(ranks) > 1:
        who += f" of ranks {_shortened(ranks)}"
    ops = _counted(f"{facts['ops']:,.0f}", "op")
    if any(trace.is_merged for trace in traces):
        return f"{who}: {_time(facts['micros'])} from the first to the last; {ops} each"
    busy = facts["busy_micros"] / facts["micros"] if facts["micros"] else 0.0
    each = ", each" if steps > 1 else ""
    return f"{who}{each}: {_time(facts['micros'])}, ops running {busy:.0%} of it; {ops}"


def _counted(number: object, what: str) -> str:
    """A number of things.

    >>> _counted(1, "op"), _counted("1,200", "op")
    ('1 op', '1,200 ops')
    """
    return f"{number} {what}" if str(number) == "1" else f"{number} {what}s"


def _shortened(numbers: Sequence[int]) -> str:
    if len(numbers) <= 6:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]}, {numbers[1]}, … {numbers[-1]}"


def _print_phases(rows: Sequence[Total], top: int | None) -> None:
    cells = [(row.key, _time(row.micros), f"{row.share:.1%}", f"{row.calls:.0f}") for row in rows]
    print_table(("phase", "time", "share", "ops"), cells, right=("time", "share", "ops"))


def _print_totals(rows: Sequence[Total], top: int | None, what: str) -> None:
    columns = ["time", "share", "calls", what]
    tells_lines = what != "line" and any(row.lines for row in rows[:top])
    cells = [
        [
            _time(row.micros),
            f"{row.share:.1%}",
            f"{row.calls:.0f}",
            _short_line(row.key) if what == "line" else row.key,
            *([_lines_of(row)] if tells_lines else []),
        ]
        for row in rows[:top]
    ]
    print_table([*columns, "line"] if tells_lines else columns, cells, right=columns[:3])
    _print_rest(len(rows), top, what)


def _lines_of(row: Total) -> str:
    """The user's line that an op took most of its time for, and of how many it is one."""
    if not row.lines:
        return "-"
    others = len(row.lines) - 1
    return _short_line(next(iter(row.lines))) + (f" and {others} more" if others else "")


def _short_line(text: str) -> str:
    """`file:line in function` with the path as one would type it here."""
    from tensortap.report.answer import short_function, short_path

    place, _, function = text.partition(" in ")
    return short_path(place) + (f" in {short_function(function)}" if function else "")


def _print_modules(rows: Sequence[tuple[Total, float]], top: int | None) -> None:
    told = {phase for total, _ in rows[:top] for phase, micros in total.phases.items() if micros}
    phases = [phase for phase in _PHASES if phase in told]
    cells = [
        (
            _time(total.micros),
            f"{total.share:.1%}",
            *(_time(total.phases[phase]) if phase in total.phases else "-" for phase in phases),
            _time(whole),
            total.key,
        )
        for total, whole in rows[:top]
    ]
    headings = ("time", "share", *phases, "with inner", "module")
    print_table(headings, cells, right=headings[:-1])
    _print_rest(len(rows), top, "module")


def _print_memory(rows: Sequence[Total], top: int | None) -> None:
    cells = [
        (size_text(int(row.nbytes)), f"{row.share:.1%}", f"{row.calls:.0f}", row.key) for row in rows[:top]
    ]
    print_table(("memory", "share", "calls", "op"), cells, right=("memory", "share", "calls"))
    _print_rest(len(rows), top, "op")


def _print_peaks(rows: Sequence[Peak], top: int | None) -> None:
    for number, peak in enumerate(rows):
        if number:
            print()
        allocator = (peak.allocator or "memory") + ("" if peak.is_exact else ", estimated")
        where = "" if peak.step is None else f" of step {peak.step}"
        where += "" if peak.rank is None else f" on rank {peak.rank}"
        print(
            f"peak of {allocator}: {size_text(peak.nbytes)} in {_counted(peak.count, 'tensor')}, "
            f"{_time(peak.micros)} after the start{where}"
        )
        cells = [
            (size_text(nbytes), f"{nbytes / peak.nbytes:.1%}", name) for name, nbytes in peak.tensors[:top]
        ]
        if cells:
            print_table(("size", "share", "tensor"), cells, right=("size", "share"))
            _print_rest(peak.count, top, "tensor", named=len(peak.tensors))


def _print_rest(total: int, top: int | None, what: str, named: int | None = None) -> None:
    shown = min(total if named is None else named, top or total)
    if total > shown:
        print(f"… and {_counted(total - shown, f'more {what}')}")


_PRINTERS = {
    "phase": _print_phases,
    "op": lambda rows, top: _print_totals(rows, top, "op"),
    "node": lambda rows, top: _print_totals(rows, top, "node"),
    "module": _print_modules,
    "line": lambda rows, top: _print_totals(rows, top, "line"),
    "memory": _print_memory,
    "peak": _print_peaks,
}


def _time(micros: float) -> str:
    """Microseconds as people read them.

    >>> _time(1234.5), _time(12.34), _time(2.5e6)
    ('1.23 ms', '12.3 µs', '2.5 s')
    """
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if micros >= factor:
            return (
                f"{micros / factor:.3g} {unit}" if micros / factor < 1000 else f"{micros / factor:.0f} {unit}"
            )
    return f"{micros:.3g} µs"


def _notices(traces: Sequence[StepTrace], sections: dict[str, list[Any]], asked: str | None) -> list[str]:
    notices = [
        f"{str(trace.path)!r} was cut to its size limit; it lacks {', '.join(trace.left_out)}."
        for trace in traces
        if trace.left_out
    ]
    notices += [
        f"{str(trace.path)!r} has no ops that tensortap or TensorFlow recorded."
        for trace in traces
        if not trace.ops
    ]
    if asked and not sections[asked] and any(trace.ops for trace in traces):
        if asked in ("memory", "peak"):
            notices.append("These traces tell nothing of memory; profile with show_memory=True.")
        else:
            notices.append(
                f"These traces tell nothing of {asked}s; ProfilerHook and tensortap run --profile write traces that do."
            )
    return notices


# --- as JSON ---------------------------------------------------------------------------------------


def _heading(traces: Sequence[StepTrace]) -> dict[str, Any]:
    steps = sum(trace.steps for trace in traces)
    return {
        "steps": steps,
        "micros": sum(trace.micros for trace in traces) / len(traces),
        "busy_micros": sum(trace.busy_micros for trace in traces) / len(traces),
        "ops": sum(len(trace.ops) for trace in traces) / steps,
        "traces": [
            {
                "file": str(trace.path),
                "step": trace.step,
                "rank": trace.rank,
                "micros": trace.micros,
                "busy_micros": trace.busy_micros,
                "ops": len(trace.ops),
                "left_out": list(trace.left_out),
            }
            for trace in traces
        ],
    }


def _as_json(rows: Sequence[Any], top: int | None) -> list[dict[str, Any]]:
    return [_row(row, top) for row in rows[:top]]


def _row(row: Any, top: int | None) -> dict[str, Any]:
    if isinstance(row, tuple):
        total, whole = row
        return {**_row(total, top), "micros_with_inner": whole}
    if hasattr(row, "tensors"):
        return {
            "allocator": row.allocator,
            "bytes": row.nbytes,
            "is_exact": row.is_exact,
            "micros": row.micros,
            "step": row.step,
            "rank": row.rank,
            "file": str(row.path),
            "count": row.count,
            "tensors": [{"tensor": name, "bytes": nbytes} for name, nbytes in row.tensors[:top]],
        }
    return {
        "name": row.key,
        "micros": row.micros,
        "share": row.share,
        "calls": row.calls,
        "bytes": row.nbytes,
        "phases": dict(row.phases),
        "lines": dict(row.lines),
    }
