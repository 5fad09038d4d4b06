"""Seeing the operations of a run: every compiled call in it is executed with taps on what is wanted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.lines import stack_from
from tensortap.engines.jax.naming import Named, name_program, output_paths
from tensortap.engines.jax.paths import clean_name
from tensortap.engines.jax.program import Argument, Program
from tensortap.engines.jax.programs import Programs
from tensortap.engines.jax.recording.known_arrays import KnownArrays, show_whole
from tensortap.engines.jax.recording.showing import Executed, Showing
from tensortap.engines.jax.recording.wishes import wishes_for
from tensortap.engines.jax.taps.kinds import PILL
from tensortap.engines.jax.taps.replay import Execution
from tensortap.engines.jax.taps.rewrite import Wishes
from tensortap.engines.jax.tensors import TENSORS, host_array, is_shared
from tensortap.engines.observe.names import NameTable
from tensortap.engines.observe.observation import Observation, RunPlan
from tensortap.errors import FeedError
from tensortap.pill import KIND_NAN, KIND_NEG_INF, KIND_POS_INF, kinds_of_elements
from tensortap.records import Frame, Node

__all__ = ["Recorder"]

_EXAMPLES = {KIND_NAN: np.nan, KIND_NEG_INF: -np.inf, KIND_POS_INF: np.inf}


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
        self._thread = threading.get_ident()
        self._so_far: Any = 0
        self._uncounted: list[Named] = []
        self.seen = Observation()
        self.labelled: dict[tuple[int, int], Node] = {}
        """Nodes by the labels that they have in what is measured."""
        self._arrays = KnownArrays(plan, self.seen, state, variable, programs.is_known_good)
        self._showing = Showing(plan, self.seen, self._arrays)
        names.start_run()

    @property
    def found_bad(self) -> bool:
        """Whether any tensor that was looked at is bad."""
        return self._showing.found_bad

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
        program, named, (wishes, only_bad), arguments = prepared
        if not wishes.taps and not wishes.feeds and wishes.label is None:
            self._show_outside()
            results = call.go_on() if arguments is call.arguments else self._plain(call, arguments)
            records: list[Execution] = []
        else:
            try:
                results, records = self._execute(program, call, wishes, arguments, only_bad)
            except NotImplementedError as error:  # JAX has no callbacks there
                results, records = self._plain(call, arguments), []
                self.seen.faults += 1
                self._programs.refuse(program, str(error))
            except Exception:
                # Whoever is at fault: executed as it is, the call says so itself.
                results, records = self._plain(call, arguments), []
                self.seen.fault("executing a call with taps")
        self._show_outside()
        try:
            with calls.unheard():
                self._showing.show(
                    Executed(
                        program,
                        named,
                        records,
                        only_bad,
                        None
                        if is_shared([*arguments, *results])
                        else lambda wanted: self._programs.execute(program, call, wanted, arguments)[1],
                    )
                )
            self._arrays.returned(named, results)
        except Exception:
            self.seen.fault("showing a call")
        if records and _jax_would_raise(results):
            return self._plain(call, arguments)  # which raises it
        return results

    def look_op_by_op(self, call: Call) -> None:
        """Show a call whose results nobody needs, executed operation by operation."""
        program, named, (wishes, only_bad), arguments = self._prepare(call)

        def again(wanted: Wishes) -> Sequence[Execution]:
            return self._programs.execute_op_by_op(program, wanted, arguments)

        self._show_outside()
        with calls.unheard():
            self._showing.show(Executed(program, named, again(wishes), only_bad, again))

    def look_at_results(self, call: Call, bad: Mapping[int, int], known: Mapping[str, bool]) -> None:
        """Show that a call has returned something bad of which nothing is known but that.

        Args:
            call: with the arguments that were kept.
            bad: kinds of bad values by place of the result.
            known: what else is: whether its own executable returns that again (`repeats`), or could not be asked
                because its arguments are gone (`donated`).
        """
        program = self._programs.of(call.jaxpr)
        paths = [clean_name(path) for path in output_paths(program)]
        traced = next((op.stack for op in program.ops if op.stack), ())
        stack = call.stack or _outside_of(program.name, traced)
        told = [paths[place] if place < len(paths) else str(place) for place in bad]
        for path, kinds in zip(told, bad.values(), strict=True):
            examples = np.array([value for kind, value in _EXAMPLES.items() if kinds & kind], np.float32)
            node = Node(
                f"{program.name or 'program'}/result/{path}".rstrip("/"),
                "executable",
                outputs=(TENSORS.spec_of(examples),),
                attributes={**known, "bad_results": f"{len(bad)} of {len(program.outputs)}"},
                stack=stack,
                phase="forward",
            )
            self.seen.nodes.append(node)
            show_whole(self._plan, node, examples)

    def _execute(
        self, program: Program, call: Call, wishes: Wishes, arguments: Sequence[Any], only_bad: bool
    ) -> tuple[Sequence[Any], list[Execution]]:
        """Execute a call with taps; with few of them, as long as all is well, if only what is bad is recorded."""
        is_whole = bool(wishes.feeds) or wishes.label is not None or is_shared(arguments)
        if only_bad and not is_whole and all(kind == PILL for _, kind in wishes.taps):
            results, is_good = self._programs.is_good(program, call, wishes, arguments, self._show_outside)
            if is_good:
                return results, []
        self._show_outside()
        return self._programs.execute(program, call, wishes, arguments)

    def _show_outside(self) -> None:
        """Show what the call was given from outside; before it may be destroyed, or while the device is busy."""
        try:
            with calls.unheard():
                self._arrays.show_outside()
        except Exception:
            self.seen.fault("showing a call")

    def _plain(self, call: Call, arguments: Sequence[Any]) -> Sequence[Any]:
        return calls.execute(arguments, dict(call.parameters, donated_invars=(False,) * len(call.donated)))

    def _prepare(self, call: Call) -> tuple[Program, Named, tuple[Wishes, bool], Sequence[Any]]:
        program = self._programs.of(call.jaxpr)
        arguments = self._arrays.fed_arguments(program, call.arguments)
        names: dict[Argument, str] = {}
        values = [
            *((Argument(place), value) for place, value in enumerate(arguments)),
            *((Argument(place, True), value) for place, value in enumerate(program.closed.consts)),
        ]
        stack: tuple[Frame, ...] = ()
        if program.is_library:
            stack = call.stack or stack_from(sys._getframe(1))
        with calls.unheard():
            for argument, value in values:
                names[argument] = self._arrays.name_of(program, argument, value, stack)
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
        wishes, only_bad = wishes_for(program, named, self._plan, self._programs, self.seen)
        if self._plan.traced:
            label = self._programs.label_of(program)
            wishes = replace(wishes, label=label)
            self.labelled.update({(label, place): node for place, node in enumerate(named.of_op)})
        return program, named, (wishes, only_bad), arguments

    def _count_names(self) -> None:
        """Go on counting behind the programs of this run whose names were known."""
        for named in self._uncounted:
            for node in named.of_op:
                scope, slash, _ = node.name.rpartition("/")
                self._names.next(scope + slash, node.op_type)
        self._uncounted.clear()


def _outside_of(function: str, stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames that led to the call of a function, of those of one of its operations."""
    inside = (n for n, frame in enumerate(stack) if frame.function.rpartition(".")[2] == function)
    return stack[: next(inside, 1)] or stack[:1]


def _jax_would_raise(results: Sequence[Any]) -> bool:
    """Whether JAX looks at results itself (`jax_debug_nans`), and finds what it is told to."""
    unwanted = (KIND_NAN if jax.config.jax_debug_nans else 0) | (
        KIND_NEG_INF | KIND_POS_INF if jax.config.jax_debug_infs else 0
    )
    if not unwanted:
        return False
    arrays = (host_array(each) for each in results)
    return any(array is not None and kinds_of_elements(array) & unwanted for array in arrays)
