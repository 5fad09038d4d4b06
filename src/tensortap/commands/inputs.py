"""`tensortap inputs`: what a node was made of."""

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
from tensortap.errors import UsageError

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.analyze.graph import Branch, Edges
    from tensortap.records import Node

HELP = "show what a node was made of, as a tree"
DESCRIPTION = """Show the inputs of a node with their health, as a tree.

  tensortap inputs dumps model/fc/addmm               its inputs
  tensortap inputs dumps model/fc/addmm -d 5          five steps back
  tensortap inputs dumps mean --from model/attn/div   the way between two
"""

DEEPEST = 100
MOST_LINES = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_tree_arguments(parser)
    parser.add_argument("--from", dest="other", metavar="NODE", help="show the way from this node instead")


def add_tree_arguments(parser: argparse.ArgumentParser) -> None:
    """What `inputs` and `outputs` have in common."""
    add_run_arguments(parser)
    parser.add_argument("node", metavar="NODE", help="name of a node, or of one of its tensors")
    parser.add_argument("-d", "--depth", type=int, default=1, metavar="N", help="how far to go (default 1)")
    parser.add_argument(
        "-R", "--recursive", action="store_true", help=f"go as far as it goes, at most {DEEPEST}"
    )
    parser.add_argument("-c", "--control", action="store_true", help="control edges too")
    parser.add_argument("--bad", action="store_true", help="only what is bad")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.graph import edges_in

    return show_tree(options, edges_in)


def show_tree(options: argparse.Namespace, edges: Edges) -> int:
    """Print the tree, or the way to or from another node."""
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.analyze.graph import edges_in, find_path, node_named, tree

    names = [options.node] if options.other is None else [options.node, options.other]
    facts = facts_of_dump(open_run(options, *names))
    node = node_named(facts, options.node)
    if options.other is not None:
        other = node_named(facts, options.other)
        start, end = (other, node) if edges is edges_in else (node, other)
        return _show_path(facts, find_path(facts, start, end), start, end, options.json)
    if not 1 <= options.depth <= DEEPEST:
        raise UsageError(f"--depth goes from 1 to {DEEPEST}.")
    depth = DEEPEST if options.recursive else options.depth
    branches = list(tree(facts, node, edges, depth=depth, control=options.control))
    if options.bad:
        branches = [each for each in branches if _is_bad(facts, each)]
    if options.json:
        print_json({"node": node.name, "tree": [_as_dict(facts, each) for each in branches]})
        return 0
    _print_tree(facts, node, branches)
    say(facts.notices)
    return 0


def _is_bad(facts: RunFacts, branch: Branch) -> bool:
    from tensortap.analyze.lines import is_bad

    return facts.is_bad(branch.tensor) or (branch.node is not None and is_bad(facts, branch.node))


def _as_dict(facts: RunFacts, branch: Branch) -> dict[str, Any]:
    health = _health(facts, branch)
    return {
        "tensor": branch.tensor,
        "op_type": None if branch.node is None else branch.node.op_type,
        "depth": branch.depth,
        "is_control": branch.is_control,
        "health": None if health is None else health.as_dict(),
    }


def _health(facts: RunFacts, branch: Branch) -> Any:
    if ":" in branch.tensor:
        return facts.health_behind(branch.tensor)
    return None if branch.node is None else facts.health_behind(branch.node.tensor(0))


def _print_tree(facts: RunFacts, node: Node, branches: list[Branch]) -> None:
    from tensortap.report.page import Page
    from tensortap.report.words import health_piece

    page = Page()
    page.row(
        (node.name, "bold"),
        "  ",
        (node.op_type, "cyan"),
        "  ",
        health_piece(facts.health_behind(node.tensor(0))),
    )
    if not branches:
        page.text("nothing", "dim")
    open_levels: dict[int, bool] = {}
    for branch in branches[:MOST_LINES]:
        open_levels[branch.depth] = not branch.is_last
        rails = "".join("│  " if open_levels.get(level) else "   " for level in range(1, branch.depth))
        hook = "└─ " if branch.is_last else "├─ "
        mark = (
            " (control)"
            if branch.is_control
            else " (above)"
            if branch.is_repeated
            else " …"
            if branch.is_cut
            else ""
        )
        op_type = "?" if branch.node is None else branch.node.op_type
        page.row(
            (rails + hook, "dim"),
            branch.tensor,
            "  ",
            (op_type, "cyan"),
            "  ",
            health_piece(_health(facts, branch)),
            (mark, "dim"),
        )
    if len(branches) > MOST_LINES:
        page.text(f"and {len(branches) - MOST_LINES} more; --json prints all", "dim")
    page.show()


def _show_path(facts: RunFacts, path: list[Node] | None, start: Node, end: Node, as_json: bool) -> int:
    from tensortap.report.page import Page
    from tensortap.report.words import health_piece

    if as_json:
        print_json(
            {
                "from": start.name,
                "to": end.name,
                "path": None if path is None else [each.name for each in path],
            }
        )
        return 0 if path else 1
    page = Page()
    if path is None:
        page.line(f"No value of {start.name} goes into {end.name}.")
    else:
        shown = path if len(path) <= MOST_LINES else [*path[: MOST_LINES // 2], *path[-MOST_LINES // 2 :]]
        page.columns(
            "path",
            [
                [each.name, (each.op_type, "cyan"), health_piece(facts.health_behind(each.tensor(0)))]
                for each in shown
            ],
        )
        if len(path) > len(shown):
            page.text(f"{len(path) - len(shown)} in the middle are not shown; --json prints all", "dim")
    page.show()
    return 0 if path else 1
