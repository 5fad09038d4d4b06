"""`tensortap node`: everything about one node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_output_arguments,
    add_run_arguments,
    open_run,
    print_json,
    say,
)

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.records import Node
    from tensortap.report.page import Page

HELP = "show one node: op, line, inputs and outputs with their health"
DESCRIPTION = """Show everything about one node of a run: op, module, source lines, arguments,
inputs and outputs.

  tensortap node dumps model/attn/softmax           in the last run
  tensortap node dumps model/attn/softmax --run 3   in run 3
  tensortap node dumps model/attn/softmax -t        with the whole stack
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument("node", metavar="NODE", help="name of a node, or of one of its tensors")
    parser.add_argument("-t", "--traceback", action="store_true", help="show the whole stack of source lines")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.analyze.graph import node_named

    facts = facts_of_dump(open_run(options, options.node))
    node = node_named(facts, options.node)
    if options.json:
        print_json(_described(facts, node))
    else:
        _page(facts, node, options.traceback).show()
        say(facts.notices)
    return 0


def _described(facts: RunFacts, node: Node) -> dict[str, Any]:
    from tensortap.analyze.facts import module_of, phase_of
    from tensortap.analyze.graph import edges_out

    def health(tensor: str) -> dict[str, Any] | None:
        found = facts.health(tensor)
        return None if found is None else found.as_dict()

    return {
        "run": facts.info.index,
        "step": facts.info.global_step,
        "rank": facts.info.task,
        "node": node.name,
        "op_type": node.op_type,
        "device": node.device,
        "phase": phase_of(node),
        "module": module_of(node),
        "forward": node.forward,
        "stack": [
            {"file": f.file, "line": f.line, "function": f.function, "text": facts.source_line(f)}
            for f in node.stack
        ],
        "attributes": dict(node.attributes),
        "inputs": [{"tensor": each, "health": health(each)} for each in node.inputs],
        "control_inputs": list(node.control_inputs),
        "outputs": [
            {
                "tensor": node.tensor(slot),
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "health": health(node.tensor(slot)),
            }
            for slot, spec in enumerate(node.outputs)
        ],
        "recipients": [name for _, name, _ in edges_out(facts, node)],
    }


def _page(facts: RunFacts, node: Node, whole_stack: bool) -> Page:
    from tensortap.analyze.facts import module_of, phase_of
    from tensortap.analyze.graph import edges_out
    from tensortap.report.answer import short_function, short_path
    from tensortap.report.page import Page, Piece
    from tensortap.report.words import health_piece

    page = Page()
    page.row((node.name, "bold"), "  ", (node.op_type, "cyan"))
    page.line()
    page.field("run", f"{facts.info.index} (step {facts.info.global_step}), {phase_of(node)}")
    module = module_of(node)
    if module:
        page.field("module", module)
    if node.forward is not None:
        page.field("forward", node.forward)
    page.field("device", node.device)
    for place, frame in enumerate(reversed(node.stack)):
        if place and not whole_stack:
            break
        page.columns(
            "line" if not place else "",
            [[f"{short_path(frame.file)}:{frame.line}", (f"in {short_function(frame.function)}", "dim")]],
        )
        text = facts.source_line(frame)
        if text:
            page.code(text, "yellow")
    if node.attributes:
        page.columns("args", [[key, str(value)] for key, value in sorted(node.attributes.items())])
    if node.inputs:
        page.line()
        page.columns(
            "inputs", [[each, health_piece(facts.health_behind(each))] for each in dict.fromkeys(node.inputs)]
        )
    if node.control_inputs:
        page.field("after", ", ".join(node.control_inputs))
    page.line()
    rows: list[list[Piece]] = [
        [node.tensor(slot), str(spec), health_piece(facts.health_behind(node.tensor(slot)))]
        for slot, spec in enumerate(node.outputs)
    ]
    page.columns("outputs", rows)
    users = [name for _, name, _ in edges_out(facts, node)]
    if users:
        shown = ", ".join(users[:8]) + (f" and {len(users) - 8} more" if len(users) > 8 else "")
        page.field("used by", shown)
    return page
