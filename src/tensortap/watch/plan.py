"""A list of watches, resolved: which debug ops run on an output, and to which URLs each record goes.

Every watch that matches a tensor counts; the same debug op to the same URL counts once. The URLs of a run
differ from run to run while everything else stays, so a plan knows URLs only by position, and runs whose
watches are otherwise equal share one plan with all it has resolved.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tensortap.errors import OpError
from tensortap.ops.debug_ops import DebugNumericSummary, DebugOp, make_debug_op
from tensortap.records import Node
from tensortap.seam.options import DebugTensorWatch
from tensortap.seam.pattern import TensorPattern, dtype_of, is_new_value
from tensortap.suggest import nearest
from tensortap.watch.grammar import parse_debug_op
from tensortap.watch.urls import Destination

__all__ = [
    "ANY_NODE",
    "ANY_SLOT",
    "OpenGates",
    "Wanted",
    "WatchPlan",
    "forget_plans",
    "make_op",
    "plan_watches",
]

ANY_NODE = "*"
ANY_SLOT = -1

Wanted = tuple[tuple[DebugOp, tuple[int, ...]], ...]
"""For one tensor: each debug op, with the positions of the URLs its record goes to."""

_NOT_RESOLVED: Any = object()
_EVERYTHING = TensorPattern()


@lru_cache(maxsize=256)
def make_op(text: str) -> DebugOp:
    """The debug op that a text such as `DebugNumericSummary(upper_bound=10)` means.

    Raises:
        InvalidArgumentError: malformed text, an unknown op, an unknown attribute or a bad value.

    >>> make_op("DebugIdentity").name
    'DebugIdentity'
    """
    parsed = parse_debug_op(text)
    return make_debug_op(parsed.name, parsed.attributes)


@dataclass(frozen=True, slots=True)
class _Watch:
    """A `DebugTensorWatch` that can be compared and looked up, with URLs by position."""

    node_name: str
    slot: int
    ops: tuple[str, ...]
    urls: tuple[int, ...]
    tolerate: bool
    pattern: TensorPattern | None

    @property
    def is_listed(self) -> bool:
        """Listed by `watch_graph`, so that nobody waits for this one node."""
        return self.node_name != ANY_NODE and self.pattern is not None

    def __str__(self) -> str:
        if self.node_name != ANY_NODE:
            return f"{self.node_name}:{self.slot}" if self.slot != ANY_SLOT else self.node_name
        if self.pattern is None:
            return "every tensor"
        given = ((name, getattr(self.pattern, name)) for name in TensorPattern.__slots__)
        return ", ".join(f"{name}={value!r}" for name, value in given if value is not None)


OpenGates = tuple[frozenset[str] | None, ...]
"""For each URL, the watch keys whose gates are open; None for one that has no gates."""


class WatchPlan:
    """Resolved watches; make one with `plan_watches`.

    Attributes:
        left_out: text and reason of tolerated debug ops that could not be made.

    >>> plan, urls = plan_watches([DebugTensorWatch("x", 0, ["DebugNanCount"], ["file:///tmp/run"])])
    >>> [(op.name, positions) for op, positions in plan.wanted(Node("x", "Placeholder"), 0)], urls
    ([('DebugNanCount', (0,))], ['file:///tmp/run'])
    >>> plan.wanted(Node("y", "aten::mul"), 0) is None
    True
    """

    def __init__(self, watches: Sequence[_Watch], gates: OpenGates = ()) -> None:
        self._watches = tuple(watches)
        self._gates = gates
        self._gated_keys: dict[int, tuple[tuple[Node, ...], list[str]]] = {}
        self._names_matched: list[set[str]] = [set() for _ in self._watches]
        self._all_matched_in: tuple[Node, ...] | None = None
        self._resolved: dict[Any, Wanted | None] = {}
        self._by_name: dict[str, list[int]] = {}
        self._any: list[int] = []
        self.left_out: list[tuple[str, str]] = []
        self._ops = [self._made(watch) for watch in self._watches]
        for position, watch in enumerate(self._watches):
            if watch.node_name == ANY_NODE:
                self._any.append(position)
            else:
                self._by_name.setdefault(watch.node_name, []).append(position)
        # Names are stable but a program may give a name another op or dtype; only then a look-up by name and
        # slot alone would go wrong.
        self._of_everything = self._of_all_alike()
        self._by_type = any(
            watch.pattern is not None and watch.pattern.looks_at_more_than_names
            for watch in (self._watches[position] for position in self._any)
        )

    @property
    def takes_summaries_only(self) -> bool:
        """Whether every debug op is a numeric summary without bounds."""
        return all(
            isinstance(op, DebugNumericSummary)
            and not (math.isfinite(op.lower_bound) or math.isfinite(op.upper_bound))
            for ops in self._ops
            for op in ops
        )

    @property
    def debug_ops(self) -> tuple[DebugOp, ...]:
        """Every debug op that some tensor may be watched with, each once."""
        return tuple(dict.fromkeys(op for ops in self._ops for op in ops))

    @property
    def has_gates(self) -> bool:
        """Whether a debug op publishes to debug servers only while they ask for it."""
        return any(op.gated_grpc for ops in self._ops for op in ops)

    def gated_keys(self, nodes: tuple[Node, ...], url: int) -> list[str]:
        """The watch keys, on outputs of these nodes, that a server could open the gates of."""
        known = self._gated_keys.get(url)
        if known is not None and known[0] == nodes:  # the same objects, run after run
            return known[1]
        keys = [
            f"{node.tensor(slot)}:{op.name}"
            for node in nodes
            for slot in range(len(node.outputs))
            for op, urls in self.wanted(node, slot) or ()
            if op.gated_grpc and url in urls
        ]
        self._gated_keys[url] = nodes, keys
        return keys

    def wanted(self, node: Node, slot: int) -> Wanted | None:
        """What to do with an output; None for nothing. Answered from memory after the first time."""
        if self._of_everything is not None:
            return self._of_everything if is_new_value(node) else None
        key: Any = (node.name, slot)
        if self._by_type:
            key = (*key, node.op_type, dtype_of(node, slot))
        found: Wanted | None = self._resolved.get(key, _NOT_RESOLVED)
        if found is _NOT_RESOLVED:
            found = self._resolved[key] = self._resolve(node, slot)
        return found

    def unmatched(self, nodes: tuple[Node, ...], reason: Callable[[str], str] | None = None) -> list[str]:
        """A sentence for each watch that matched no tensor of a run which executed these nodes.

        Args:
            nodes: what the run executed.
            reason: why a node that exists was not executed; empty for names that nothing has.
        """
        if nodes == self._all_matched_in:  # the same objects, run after run: comparing them is cheap
            return []
        if self._of_everything is not None and any(map(is_new_value, nodes)):
            return []
        sentences = []
        outputs: dict[str, int] = {}
        for watch, names in zip(self._watches, self._names_matched, strict=True):
            # Most match what comes first.
            if watch.is_listed or not nodes or not names.isdisjoint(node.name for node in nodes):
                continue
            outputs = outputs or {node.name: len(node.outputs) for node in nodes}
            if watch.node_name in outputs:
                count = outputs[watch.node_name]
                sentences.append(f"{watch}: the node has {count} output{'s' * (count != 1)}.")
            elif watch.node_name == ANY_NODE:
                sentences.append(f"{watch}: no node matched.{_hint(watch.pattern, outputs)}")
            elif reason is not None and (why := reason(watch.node_name)):
                sentences.append(f"{watch}: {why}.")
            else:
                sentences.append(f"{watch}: no such node.{nearest(watch.node_name, outputs)}")
        if not sentences:
            self._all_matched_in = nodes
        return sentences

    def _made(self, watch: _Watch) -> list[DebugOp]:
        made = []
        for text in watch.ops:
            try:
                made.append(make_op(text))
            except OpError as error:
                if not watch.tolerate:
                    raise
                if (text, error.message) not in self.left_out:
                    self.left_out.append((text, error.message))
        return made

    def _of_all_alike(self) -> Wanted | None:
        """What is wanted of every value, if no watch looks at names or types and none has gates."""
        if self._gates or not all(
            watch.node_name == ANY_NODE
            and watch.slot == ANY_SLOT
            and (watch.pattern is None or watch.pattern.is_empty)
            for watch in self._watches
        ):
            return None
        return self._resolve(Node("", ""), 0)

    def _resolve(self, node: Node, slot: int) -> Wanted | None:
        urls_of: dict[DebugOp, dict[int, None]] = {}
        for position in (*self._by_name.get(node.name, ()), *self._any):
            watch = self._watches[position]
            if watch.slot not in (slot, ANY_SLOT):
                continue
            if position in self._any and not (watch.pattern or _EVERYTHING).matches(node, slot):
                continue
            self._names_matched[position].add(node.name)
            for op in self._ops[position]:
                urls_of.setdefault(op, {}).update(dict.fromkeys(watch.urls))
        if self._gates:
            for op, urls in urls_of.items():
                if op.gated_grpc:
                    key = f"{node.tensor(slot)}:{op.name}"
                    urls_of[op] = {url: None for url in urls if self._is_open(url, key)}
        return tuple((op, tuple(urls)) for op, urls in urls_of.items() if urls) or None

    def _is_open(self, url: int, key: str) -> bool:
        gates = self._gates[url]
        return gates is None or key in gates


def _hint(pattern: TensorPattern | None, names: Iterable[str]) -> str:
    """What a pattern that matched nothing may have meant."""
    regex = None if pattern is None else pattern.node_name_regex_allowlist
    if regex is None:
        return ""
    inside = [name for name in names if re.search(regex, name)]
    if inside:
        return f" Expressions match at the start of a name; '.*{regex}' would match {inside[0]!r}."
    return nearest(regex, names)


_plans: OrderedDict[tuple[tuple[_Watch, ...], OpenGates], WatchPlan] = OrderedDict()
_plans_lock = threading.Lock()
_PLANS_KEPT = 16  # enough for several hooks with alternating watches, little enough to forget old programs


def forget_plans() -> None:
    """Forget what plans have resolved, and with it the numbers of keys: runs that begin from now on resolve anew."""
    with _plans_lock:
        _plans.clear()


def plan_watches(watches: Iterable[DebugTensorWatch], gates: OpenGates = ()) -> tuple[WatchPlan, list[str]]:
    """The plan for a list of watches, and the URLs of this run in the plan's order.

    Args:
        watches: what to watch.
        gates: which gates are open; without it, all are.

    Raises:
        InvalidArgumentError: a debug op that cannot be made and is not tolerated.
    """
    urls: dict[object, tuple[int, str]] = {}
    key = tuple(
        _Watch(
            watch.node_name,
            watch.output_slot,
            tuple(watch.debug_ops),
            tuple(urls.setdefault(_place(url), (len(urls), url))[0] for url in watch.debug_urls),
            watch.tolerate_debug_op_creation_failures,
            watch.pattern,
        )
        for watch in watches
    )
    with _plans_lock:
        plan = _plans.get((key, gates))
        if plan is None:
            plan = _plans[key, gates] = WatchPlan(key, gates)
            if len(_plans) > _PLANS_KEPT:
                _plans.popitem(last=False)
        else:
            _plans.move_to_end((key, gates))
    return plan, [url for _, url in urls.values()]


def _place(url: str) -> object:
    """Equal for URLs that are one destination: of the same text, unless it is that of two hooks."""
    return id(url) if isinstance(url, Destination) else url
