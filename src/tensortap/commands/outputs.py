"""`tensortap outputs`: what was made of a node."""

from __future__ import annotations

import argparse

from tensortap.commands.inputs import add_tree_arguments, show_tree

HELP = "show what was made of a node, as a tree"
DESCRIPTION = """Show the nodes that take the outputs of a node, with their health, as a tree.

  tensortap outputs dumps model/fc/addmm               who uses it
  tensortap outputs dumps model/attn/div -d 8 --bad    how far a bad value went
  tensortap outputs dumps model/attn/div --to mean     the way to another node
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_tree_arguments(parser)
    parser.add_argument("--to", dest="other", metavar="NODE", help="show the way to this node instead")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.graph import edges_out

    return show_tree(options, edges_out)
