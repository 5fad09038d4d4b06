"""`tensortap eval`: an expression over tensors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_output_arguments,
    add_run_arguments,
    open_run,
    print_json,
    run_name,
    say,
)

if TYPE_CHECKING:
    from tensortap.reader import DebugDumpDir

HELP = "work out an expression over tensors"
DESCRIPTION = """Work out an expression over the recorded tensors of a run. Nothing is executed:
it is parsed, and only arithmetic, comparisons, slices and functions of NumPy
that are known to be safe are allowed. Names of tensors stand in back-ticks, so
put the expression in single quotes.

  tensortap eval dumps 'np.mean(`model/fc/addmm:0`[0])'
  tensortap eval dumps '`model/fc/addmm:0`.max(-1) > 3' --run 2
  tensortap eval dumps 'np.linalg.norm(`gradients/model/fc/weight:0`)'
  tensortap eval dumps '`loop/add:0[3]` - `loop/add:0[2]`'  two executions
  tensortap eval dumps '`x:0:DebugNumericSummary`[2]'       another debug op
  tensortap eval dumps '`model/fc/addmm:0`.T' -o out.npy    into a file
"""

ELEMENTS_SHOWN = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument("expression", metavar="EXPRESSION", help="with names of tensors in `back-ticks`")
    parser.add_argument("-a", "--all", action="store_true", help="print all elements")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.npy", help="write the result to a file")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    import numpy as np

    from tensortap.analyze.expression import Expression, parse_reference
    from tensortap.commands.show import print_value, write_value

    expression = Expression(options.expression)
    dump = open_run(options, *(parse_reference(each).tensor for each in expression.references), recorded=True)
    result = expression.evaluate(lambda reference: _load(options, dump, reference))
    if options.output is not None:
        write_value(np.asarray(result), options.output, options.force)
    if options.json:
        array = np.asarray(result)
        shown = array.tolist() if options.all or array.size <= ELEMENTS_SHOWN else None
        print_json(
            {
                "expression": options.expression,
                "run": dump.dump_root.name,
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "value": shown,
            }
        )
        return 0
    if options.output is None:
        print_value(result, show_all=options.all)
    say(dump.notices)
    return 0


def _load(options: argparse.Namespace, dump: DebugDumpDir, text: str) -> Any:
    """The record that stands between back-ticks."""
    from tensortap.analyze.expression import ExpressionError, parse_reference
    from tensortap.analyze.names import meant
    from tensortap.analyze.values import WHOLE_VALUE, NoSuchOp, NoSuchTensor, find_record
    from tensortap.errors import NotThereError

    reference = parse_reference(text)
    op = reference.debug_op or WHOLE_VALUE
    try:
        found = find_record(dump, reference.tensor, op, reference.execution, reference.device)
    except NoSuchTensor as error:
        hint = meant(reference.tensor, error.names)
        raise ExpressionError(f"{run_name(dump)} has no tensor {reference.tensor!r}.{hint}") from None
    except NoSuchOp as error:
        there = sorted(error.ops)
        raise ExpressionError(
            f"The value of {reference.tensor!r} was not recorded, only {', '.join(there)}; watch it with {op}, or "
            f"write `{reference.tensor}:{there[0]}`."
        ) from None
    except NotThereError as error:
        raise ExpressionError(str(error)) from None
    value = found.value()
    if not hasattr(value, "dtype"):
        raise ExpressionError(f"{reference.tensor!r} had no value.")
    return value
