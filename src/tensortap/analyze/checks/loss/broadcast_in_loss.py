"""A column minus a row: every prediction compared with every target."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import Flow, flow_of, place_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


from tensortap.records import Frame, Node

_COMPARES = ("sub", "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")
_BETWEEN = ("pow", "abs", "neg", "square", "div", "float_power")
_ASKED_FOR = ("unsqueeze", "view", "reshape", "unsafe_view", "expand")


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Comparisons of (N, 1) with (N) whose N×N results are averaged into what is trained."""
    seen = set()
    for run in evidence.runs:
        flow = flow_of(run)
        for node in flow.nodes(*_COMPARES):
            if node.name in seen or len(node.inputs) < 2 or not flow.is_trained(node):
                continue
            pair = _column_and_row(flow, node)
            if pair is None or not _is_averaged(flow, node):
                continue
            column, row, count = pair
            seen.add(node.name)
            lines = [_source(flow, each) for each in (column, row)]
            made = [f", made at {place_of(line)}," if line is not None else "" for line in lines]
            yield RULE.finding(
                node.name,
                f"{node.name} compares every element of {column} ({count}, 1){made[0]} with every element of {row} "
                f"({count}){made[1].rstrip(',')}: {count}×{count} pairs instead of {count}.",
                step=flow.step,
                source=node.own_source,
                evidence={
                    "shape of the column": f"({count}, 1)",
                    "shape of the row": f"({count},)",
                    "pairs compared": count * count,
                    "pairs there are": count,
                    "line of the column": None if lines[0] is None else place_of(lines[0]),
                    "line of the row": None if lines[1] is None else place_of(lines[1]),
                },
            )


def _column_and_row(flow: Flow, node: Node) -> tuple[str, str, int] | None:
    given = [_before_expanding(flow, tensor) for tensor in node.inputs[:2]]
    shapes = [flow.shape(tensor) for tensor in given]
    for first, second in ((0, 1), (1, 0)):
        column, row = shapes[first], shapes[second]
        if column is None or row is None or len(column) != 2 or len(row) != 1 or column[1] != 1:
            continue
        count = column[0]
        if count is None or count < 2 or count != row[0]:
            continue
        if flow.operation(given[first]) in _ASKED_FOR or flow.origin(given[first]) == flow.origin(
            given[second]
        ):
            continue
        return given[first], given[second], count
    return None


def _before_expanding(flow: Flow, tensor: str) -> str:
    node = flow.facts.node_of(tensor)
    return node.inputs[0] if node is not None and flow.operation(tensor) == "expand" else tensor


def _is_averaged(flow: Flow, node: Node) -> bool:
    if flow.shape(node.tensor()) == ():
        return True
    end = flow.reaches(node.tensor(), ("mean", "sum"), _BETWEEN)
    return end is not None and flow.shape(end.tensor()) == ()


def _source(flow: Flow, tensor: str) -> Frame | None:
    node = flow.facts.node_of(flow.origin(tensor))
    return None if node is None else node.own_source


RULE = Rule(
    "broadcast-in-loss",
    "sure",
    "A difference or loss of a column (N, 1) and a row (N), whose N×N result is averaged or summed up whole "
    "and trained: broadcasting compares every prediction with every target, and the best that can be learned "
    "is the mean of the targets. Columns that the program makes by a reshaping of its own, tensors compared "
    "with themselves, and results that are weighted or masked before they are averaged, are pairwise on "
    "purpose.",
    "loss = ((model(x) - y) ** 2).mean()  # model(x) is (16, 1), y is (16,)",
    "both shapes, both lines, and the number of pairs",
    "Give both the same shape: squeeze(1) the predictions, or unsqueeze(1) the targets.",
    find,
)
