"""Seeing the operations of a run: every compiled call in it is executed with taps on what is wanted."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.dtypes import READABLE
from tensortap.engines.jax.lines import stack_from
from tensortap.engines.jax.naming import Named, argument_name, name_program
from tensortap.engines.jax.program import Argument, Op, Program, Site
from tensortap.engines.jax.programs import Programs
from tensortap.engines.jax.taps.primitives import PILL, VALUE
from tensortap.engines.jax.taps.replay import Execution
from tensortap.engines.jax.taps.rewrite import Wishes
from tensortap.engines.jax.tensors import TENSORS
from tensortap.engines.observe.names import NameTable
from tensortap.engines.observe.observation import Observation, RunPlan
from tensortap.errors import FeedError
from tensortap.ops.debug_ops import DebugNumericSummary
from tensortap.ops.dtypes import numpy_dtype
from tensortap.pill import KIND_NAN, kinds_of
from tensortap.records import MAX_BATCH_RANK, Frame, Node, TensorSpec

__all__ = ["Recorder"]


class Recorder:
    """Listens to the calls of one run.

    Args:
        plan: what is wanted.
        programs: what has been looked through.
        names: of the session.
        state: tensors that exist before the run, by tensor name.
        known: named programs of earlier runs, kept up to date.
    """

    def __init__(
        self,
        plan: RunPlan,
        programs: Programs,
        names: NameTable,
        state: Mapping[str, Any],
        known: dict[Any, Named],
        variable: Callable[[str, Any], Node],
    ) -> None:
        self._plan = plan
        self._programs = programs
        self._names = names
        self._known = known
        self._variable = variable
        self._thread = threading.get_ident()
        self._made: dict[int, tuple[str, Any]] = {}
        for name, value in plan.inputs.items():
            self._made[id(value)] = (f"{name}:0", value)
        self._inputs = {f"{name}:0" for name in plan.inputs}
        for name, value in state.items():
            self._made[id(value)] = (name, value)
        self._state = frozenset(state)
        self._shown: set[str] = set()
        self._outside: dict[str, int] = {}
        self._so_far: Any = 0
        self._uncounted: list[Named] = []
        self.found_bad = False
        self._only_bad = not plan.taps and not plan.captures
        self.seen = Observation()
        names.start_run()

    # --- one call ----------------------------------------------------------------------------------

    def called(self, call: Call) -> Sequence[Any]:
        """Execute a call with taps."""
        if threading.get_ident() != self._thread or not calls.is_concrete(call.arguments):
            return call.go_on()
        try:
            prepared = self._prepare(call)
        except FeedError:
            raise
        except Exception:
            self.seen.fault("preparing a call")
            return call.go_on()
        program, named, wishes, arguments = prepared
        if not wishes.taps and not wishes.feeds:
            results = call.go_on() if arguments is call.arguments else self._plain(call, arguments)
            executed: list[Execution] = []
        else:
            results, executed = self._execute(program, call, wishes, arguments)
        with calls.unheard():
            self._show_call(program, named, executed, call, arguments, wishes)
        for name, value in zip(named.outputs, results, strict=True):
            if name is not None and isinstance(value, jax.Array):
                self._made[id(value)] = (name, value)
        return results

    def _execute(
        self, program: Program, call: Call, wishes: Wishes, arguments: Sequence[Any]
    ) -> tuple[Sequence[Any], list[Execution]]:
        """Execute a call with taps; with few of them, as long as all is well, if only what is bad is recorded."""
        if self._only_bad and not wishes.feeds and all(kind == PILL for _, kind in wishes.taps):
            results, is_good = self._programs.is_good(program, call, wishes, arguments)
            if is_good:
                return results, []
        return self._programs.execute(program, call, wishes, arguments)

    def _plain(self, call: Call, arguments: Sequence[Any]) -> Sequence[Any]:
        return calls.execute(arguments, dict(call.parameters, donated_invars=(False,) * len(call.donated)))

    def _prepare(self, call: Call) -> tuple[Program, Named, Wishes, Sequence[Any]]:
        program = self._programs.of(call.jaxpr)
        arguments = self._fed_arguments(program, call)
        names: dict[Argument, str] = {}
        values = [
            *((Argument(place), value) for place, value in enumerate(arguments)),
            *((Argument(place, True), value) for place, value in enumerate(program.closed.consts)),
        ]
        with calls.unheard():
            for argument, value in values:
                names[argument] = self._name_of(program, argument, value)
        stack: tuple[Frame, ...] = ()
        if program.is_library:
            stack = call.stack or stack_from(sys._getframe(1))
        key = (self._so_far, id(program), tuple(names.values()), stack)
        named = self._known.get(key)
        if named is None:
            self._count_names()
            device = TENSORS.device_of(arguments[0]) if len(arguments) else ""
            named = name_program(program, names, self._names, device, stack)
            self._known[key] = named
        else:
            self._uncounted.append(named)
        self._so_far = hash(key)
        return program, named, self._wishes(program, named), arguments

    def _count_names(self) -> None:
        """Go on counting behind the programs of this run whose names were known."""
        for named in self._uncounted:
            for node in named.of_op:
                scope, slash, _ = node.name.rpartition("/")
                self._names.next(scope + slash, node.op_type)
        self._uncounted.clear()

    def _fed_arguments(self, program: Program, call: Call) -> Sequence[Any]:
        """The arguments of a call, with fed values in the place of those that have a name and are fed."""
        feeds = self._plan.feeds
        if not feeds:
            return call.arguments
        arguments = list(call.arguments)
        for place, value in enumerate(arguments):
            name = self._made.get(id(value), (f"{argument_name(program, Argument(place))}:0",))[0]
            if name in feeds:
                spec = program.argument_spec(Argument(place))
                arguments[place] = jax.numpy.asarray(TENSORS.fitting(name, feeds[name], spec))
                self._made[id(arguments[place])] = (name, arguments[place])
                self.seen.fed.add(name)
        return arguments

    def _name_of(self, program: Program, argument: Argument, value: Any) -> str:
        """The name of what a call is given; of something from outside, which becomes a node at its first use."""
        known = self._made.get(id(value)) if isinstance(value, (jax.Array, np.ndarray)) else None
        if known is None:
            base = "constant" if program.is_library else argument_name(program, argument)
            number = self._outside[base] = self._outside.get(base, -1) + 1
            name = f"{base}_{number}:0" if number else f"{base}:0"
            self._made[id(value)] = known = (name, value)
            kind = "Placeholder"
            if program.is_library or argument.is_constant:
                kind = "Const"
            elif argument.place in program.updated:
                kind = "Variable"
            self._show_outside(name, kind, value)
        elif known[0] not in self._shown and (known[0] in self._inputs or known[0] in self._state):
            self._show_outside(known[0], "Placeholder" if known[0] in self._inputs else "Variable", value)
        return known[0]

    def _show_outside(self, name: str, kind: str, value: Any) -> None:
        self._shown.add(name)
        if kind == "Variable":
            node = self._variable(name, value)
        else:
            spec = (
                TENSORS.spec_of(value)
                if TENSORS.is_tensor(value)
                else TensorSpec(np.asarray(value).dtype.name, ())
            )
            node = Node(
                name.removesuffix(":0"),
                kind,
                outputs=(spec,),
                device=TENSORS.device_of(value) if isinstance(value, jax.Array) else "",
                phase="input",
            )
        self.seen.nodes.append(node)
        array = value if TENSORS.is_tensor(value) else np.asarray(value)
        if TENSORS.readable(array) is None:
            return
        if name in self._plan.captures:
            self.seen.capture(TENSORS, name, array)
        bad = self._plan.watching.bad if self._plan.watching is not None else None
        if bad is not None:
            bad.begin()
        for tap in self._plan.all_taps:
            tap(node, 0, array)
        if bad is not None:
            bad.look(node, [array], [], ())

    # --- what is wanted of a program -------------------------------------------------------------------

    def _wishes(self, program: Program, named: Named) -> Wishes:
        plan = self._plan
        taps: dict[int, int] = {}
        feeds: dict[int, int] = {}
        watching = plan.watching
        for site in program.sites:
            if site.number in program.controls or site.spec.dtype not in READABLE:
                continue
            tensor = named.tensors[site.number]
            node = named.of_op[site.op]
            if plan.taps or tensor in plan.captures:
                taps[site.number] = VALUE
            elif watching is not None:
                wanted = watching.wants(node, site.slot)
                if wanted:
                    only_pills = all(_is_plain_summary(op) for op, _ in wanted)
                    self._only_bad = self._only_bad and all(
                        getattr(op, "mute_if_healthy", False) for op, _ in wanted
                    )
                    if only_pills and not site.is_float:
                        continue  # an integer is never bad: its numbers would cost as much as those of a float
                    taps[site.number] = PILL if only_pills else VALUE
            if tensor in plan.feeds:
                number = self._programs.feed_number(program, site.number)
                self._programs.store(
                    number,
                    TENSORS.fitting(tensor, plan.feeds[tensor], named.of_op[site.op].outputs[site.slot]),
                )
                feeds[site.number] = number
                self.seen.fed.add(tensor)
        if watching is not None and taps:
            for number in program.leaving:
                if program.sites[number].spec.dtype in READABLE:
                    taps.setdefault(number, PILL)
        return Wishes(frozenset(taps.items()), frozenset(feeds.items()))

    # --- what was seen -----------------------------------------------------------------------------

    def _show_call(
        self,
        program: Program,
        named: Named,
        executed: Sequence[Execution],
        call: Call,
        arguments: Sequence[Any],
        wishes: Wishes,
    ) -> None:
        """Show the executions of a call, in the order of the program, to whoever wants them."""
        plan, seen, watching = self._plan, self.seen, self._plan.watching
        executed = _gradients_last(program, executed)
        began = 0 if watching is None else watching.publisher.now()  # when the inputs of all were there
        last = {each.site.number: each for each in executed}
        self.found_bad = self.found_bad or any(kinds_of(each.row) for each in executed)
        nodes = self._with_iterations(program, named, last)
        seen.nodes.extend(nodes.get(node.name, node) for node in named.nodes)
        pending: list[tuple[Node, int, int]] = []
        rows: list[npt.NDArray[np.float64]] = []

        def flush() -> None:
            if pending and watching is not None:
                watching.summarised(pending, np.array(rows))
            pending.clear()
            rows.clear()

        for node in named.nodes if watching is not None and named.constants else ():
            constant = named.constants.get(node.name)
            if watching is not None and constant is not None and constant.dtype.kind in "fc":
                watching.tap(node, 0, constant)
        for each in executed:
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
            self._keep_makers(program, named, last, call, arguments, began)

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

    def _keep_makers(
        self,
        program: Program,
        named: Named,
        last: Mapping[int, Execution],
        call: Call,
        arguments: Sequence[Any],
        began: int,
    ) -> None:
        """Record the values around operations that made bad values of good ones: the call is executed once more."""
        assert self._plan.watching is not None
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
        _, executed = self._programs.execute(program, call, wishes, arguments)
        values: dict[str, Any] = {
            named.tensors[each.site.number]: _array_of(each) for each in executed if each.data is not None
        }
        for name, constant in named.constants.items():
            values[f"{name}:0"] = constant
        for tensor, value in self._made.values():
            if TENSORS.is_tensor(value) and TENSORS.readable(value) is not None:
                values.setdefault(tensor, value)
        for op, node in makers:
            bad.begin()
            outputs = [values.get(named.tensors[site.number]) for site in op.outs]
            if all(each is not None for each in outputs):
                inputs = [(name, values.get(name)) for name in node.inputs]
                # What is healthy and muted has no record: its value then stands before that of the node.
                when = began if self._only_bad else self._plan.watching.publisher.now()
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


def _is_plain_summary(op: Any) -> bool:
    return (
        type(op) is DebugNumericSummary
        and not math.isfinite(op.lower_bound)
        and not math.isfinite(op.upper_bound)
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
