"""Which op of a program a node was made for, when TensorFlow's runtime made it.

The runtime puts the bodies of functions, loops and branches in the place of the op that calls them, names their nodes
below it (`loop/body/_9/log`, `cond/then/_0/root`, `PartitionedCall/exp`), adds what carries values around
(`loop/merge/_20`, `_arg_x_0_0`), and folds and rewrites the rest (`ConstantFolding/…`, `…/ArithmeticOptimizer/…`).
"""

from __future__ import annotations

import re
from collections.abc import Container

__all__ = ["is_made_by_runtime", "op_behind", "placeholder_behind"]

_EDGE = re.compile(r"_(?:arg|retval)_(?P<op>.+)_\d+_\d+")
_BEFORE = re.compile(r"(?:ConstantFolding|Func|LoopInvariantNodeMotion)/")
_MADE = re.compile(r"^_|(?:^|/)_\d+(?:/|$)|__cf__\d+$|Optimizer(?:/|$)|-folded\b|^ConstantFolding/|^Func/")


def op_behind(node: str, ops: Container[str]) -> str | None:
    """The op that a node is, or that it was made for; None if there is none among `ops`.

    >>> ops = {"x", "outer/loop", "loss"}
    >>> [op_behind(name, ops) for name in ("loss", "outer/loop/body/_9/log_0", "_arg_x_0_0", "elsewhere/add")]
    ['loss', 'outer/loop', 'x', None]
    """
    edge = _EDGE.fullmatch(node)
    name = edge["op"] if edge else _BEFORE.sub("", node, count=1)
    while name:
        if name in ops:
            return name
        name = name.rpartition("/")[0]
    return None


def placeholder_behind(node: str) -> str:
    """What the program calls an input: the runtime has its own name for what is fed.

    >>> placeholder_behind("_arg_images_0_3"), placeholder_behind("images")
    ('images', 'images')
    """
    edge = _EDGE.fullmatch(node)
    return edge["op"] if edge else node


def is_made_by_runtime(node: str) -> bool:
    """Whether a name is one that only the runtime gives.

    >>> [is_made_by_runtime(name) for name in ("loop/merge/_20", "ConstantFolding/b", "w/read", "layer_1/add")]
    [True, True, False, False]
    """
    return _MADE.search(node) is not None
