"""Which lines of the program the nodes of a run come from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tensortap.analyze.facts import RunFacts
from tensortap.errors import NotThereError
from tensortap.records import Node
from tensortap.suggest import nearest

__all__ = ["SourceFile", "find_file", "source_files"]


@dataclass(slots=True)
class SourceFile:
    """One file of the program.

    Attributes:
        lines: the nodes whose innermost line each is, by line number.
        bad: how many of its nodes have a bad output.
    """

    path: str
    lines: dict[int, list[Node]] = field(default_factory=dict)
    bad: int = 0

    @property
    def nodes(self) -> int:
        """Number of nodes that come from the file."""
        return sum(map(len, self.lines.values()))


def source_files(facts: RunFacts) -> list[SourceFile]:
    """The files the nodes of a run come from, those with most nodes first."""
    files: dict[str, SourceFile] = {}
    for name in facts.nodes:
        node = facts.nodes[name]
        if node.source is None:
            continue
        file = files.setdefault(node.source.file, SourceFile(node.source.file))
        file.lines.setdefault(node.source.line, []).append(node)
        file.bad += is_bad(facts, node)
    return sorted(files.values(), key=lambda file: -file.nodes)


def is_bad(facts: RunFacts, node: Node) -> bool:
    """Whether any recorded output of a node is bad."""
    return any(facts.is_bad(node.tensor(slot)) for slot in range(max(len(node.outputs), 1)))


def find_file(files: list[SourceFile], path: str) -> SourceFile:
    """The file a user means by a path or the end of one.

    Raises:
        LookupError: there is none, or there are several.
    """
    wanted = path.replace(os.sep, "/")
    exact = [each for each in files if each.path in (path, os.path.abspath(path))]
    found = exact or [each for each in files if f"/{each.path}".replace(os.sep, "/").endswith(f"/{wanted}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotThereError(
            f"{path!r} may be {' or '.join(each.path for each in found)}; say more of the path."
        )
    names = [os.path.basename(each.path) for each in files]
    known = nearest(os.path.basename(path), names) or f" There are {', '.join(names[:5]) or 'none'}."
    raise NotThereError(f"No node of this run comes from {path!r}.{known}")
