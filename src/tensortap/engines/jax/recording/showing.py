"""Showing what taps have seen of a call, in the order of the program, to whoever wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.engines.jax.dtypes import READABLE
from tensortap.engines.jax.naming import Named
from tensortap.engines.jax.program import Op, Program, Site
from tensortap.engines.jax.recording.known_arrays import KnownArrays
from tensortap.engines.jax.taps.kinds import PILL, VALUE
from tensortap.engines.jax.taps.replay import Execution
from tensortap.engines.jax.taps.rewrite import Wishes
from tensortap.engines.observe.observation import Observation, RunPlan
from tensortap.ops.dtypes import numpy_dtype
from tensortap.pill import KIND_NAN, kinds_of
from tensortap.records import MAX_BATCH_RANK, Node

__all__ = ["Executed", "Showing"]


@dataclass(frozen=True)
class Executed:
    """A call that was executed.

    Attributes:
        records: of its taps.
        only_bad: whether nothing but what is bad is recorded of it.
        again: executes it once more, with other wishes; what its taps have seen. None if that cannot be, because
            several processes execute it together.
    """

    program: Program
    named: Named
    records: Sequence[Execution]
    only_bad: bool
    again: Callable[[Wishes], Sequence[Execution]] | None


class Showing:
    """Shows the calls of a run.

    Attributes:
        found_bad: whether any tensor was bad.
    """

    def __init__(self, plan: RunPlan, seen: Observation, arrays: KnownArrays) -> None:
        self._plan = plan
        self._seen = seen
        self._arrays = arrays
        self.found_bad = False

    def show(self, executed: Executed) -> None:
        """Show the tensors of a call."""
        plan, seen, watching = self._plan, self._seen, self._plan.watching
        program, named = executed.program, executed.named
        records = _gradients_last(program, executed.records)
        began = 0 if watching is None else watching.publisher.now()  # when the inputs of all were there
        last = {each.site.number: each for each in records}
        self.found_bad = self.found_bad or any(kinds_of(each.row) for each in records)
        nodes = self._with_iterations(program, named, last)
        seen.nodes.extend(nodes.get(node.name, node) for node in named.nodes)
        pending: list[tuple[Node, int, int]] = []
        rows: list[npt.NDArray[np.float64]] = []

        def flush() -> None:
            if pending and watching is not None:
                watching.summarised(pending, np.array(rows))
            pending.clear()
            rows.clear()

        for node, constant, is_good in named.float_constants if watching is not None else ():
            if watching is not None and not (is_good and executed.only_bad):
                watching.tap(node, 0, constant)
        for each in records:
            node = named.of_op[each.site.op]
            tensor = named.tensors[each.site.number]
            if each.data is None:
                if watching is not None and watching.wants(node, each.site.slot):
                    pending.append((node, each.site.slot, min(len(each.site.spec.shape), MAX_BATCH_RANK)))
                    rows.append(each.row)
                continue
            flush()
            array = _array_of(each)
            if array is None:
                continue
            if tensor in plan.captures:
                seen.captured[tensor] = array
            for tap in plan.all_taps:
                tap(node, each.site.slot, array)
        flush()
        if watching is not None and watching.bad.limit:
            self._keep_makers(executed, last, began)

    def _with_iterations(
        self, program: Program, named: Named, last: Mapping[int, Execution]
    ) -> dict[str, Node]:
        """The nodes of loops in which something turned bad, with the iteration in which it did."""
        found: dict[str, Node] = {}
        for op, node in zip(program.ops, named.of_op, strict=True):
            if not op.loops or not op.outs:
                continue
            seen = next((last[site.number] for site in op.outs if site.number in last), None)
            if seen is not None and kinds_of(seen.row):
                text = _iteration(op, seen.iterations)
                if text:
                    found[node.name] = replace(node, attributes={**node.attributes, "iteration": text})
        return found

    def _keep_makers(self, executed: Executed, last: Mapping[int, Execution], began: int) -> None:
        """Record the values around operations that made bad values of good ones: the call is executed once more."""
        assert self._plan.watching is not None
        program, named = executed.program, executed.named
        bad = self._plan.watching.bad
        makers = []
        for op, node in zip(program.ops, named.of_op, strict=True):
            inherited = found = 0
            for name in node.inputs:
                inherited |= bad.kinds_of(name)
            for site in op.outs:
                seen = last.get(site.number)
                kinds = inherited if seen is None else kinds_of(seen.row)
                bad.note(named.tensors[site.number], kinds)
                found |= kinds
            made = found & KIND_NAN & ~inherited if inherited else found
            if made and bad.wants(node, made):
                makers.append((op, node))
        if not makers:
            return
        wanted = {site.number for op, _ in makers for site in self._around(op)}
        wishes = Wishes(
            frozenset((n, VALUE) for n in wanted if program.sites[n].spec.dtype in READABLE)
            | frozenset((n, PILL) for n in program.leaving if n not in wanted)
        )
        records = executed.again(wishes) if executed.again is not None else ()
        values: dict[str, Any] = {
            named.tensors[each.site.number]: _array_of(each) for each in records if each.data is not None
        }
        for name, constant in named.constants.items():
            values[f"{name}:0"] = constant
        for tensor, value in self._arrays.readable():
            values.setdefault(tensor, value)
        for op, node in makers:
            bad.begin()
            outputs = [values.get(named.tensors[site.number]) for site in op.outs]
            if all(each is not None for each in outputs):
                inputs = [(name, values.get(name)) for name in node.inputs]
                # What is healthy and muted has no record: its value then stands before that of the node.
                when = began if executed.only_bad else self._plan.watching.publisher.now()
                bad.keep(node, outputs, inputs, when)

    def _around(self, op: Op) -> Iterable[Site]:
        return (*op.outs, *(value for value in op.inputs if isinstance(value, Site)))


def _gradients_last(program: Program, executed: Sequence[Execution]) -> Sequence[Execution]:
    """Executions in order, but parts of derivatives behind the forward pass: what went bad in that comes first."""
    ops = program.ops
    begins = next(
        (
            n
            for n, each in enumerate(executed)
            if ops[each.site.op].is_backward and not ops[each.site.op].is_early
        ),
        len(executed),
    )
    forward, rest = executed[:begins], executed[begins:]
    early = [each for each in forward if ops[each.site.op].is_early]
    return (
        [*(each for each in forward if not ops[each.site.op].is_early), *early, *rest] if early else executed
    )


def _array_of(execution: Execution) -> npt.NDArray[Any] | None:
    if execution.data is None:
        return None
    dtype = numpy_dtype(execution.site.spec.dtype)
    if dtype is None:
        return None
    return np.frombuffer(execution.data, dtype).reshape([d or 0 for d in execution.site.spec.shape])


def _iteration(op: Op, iterations: tuple[int, ...]) -> str:
    """Which iteration of which loop, in words: `37 of the scan at train.py:52`."""
    parts = []
    for loop, index in zip(op.loops, iterations, strict=False):
        if loop.kind == "cond" or index < 0:
            continue
        line = f" at {loop.line.file.rpartition('/')[2]}:{loop.line.line}" if loop.line is not None else ""
        parts.append(f"{index} of the {loop.kind}{line}")
    return ", ".join(reversed(parts))
