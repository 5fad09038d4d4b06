"""What the calls of a run are given and return: which arrays have a name already, and what comes from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax.sharding import SingleDeviceSharding

from tensortap.engines.jax.dtypes import XLA_DTYPES
from tensortap.engines.jax.naming import Named, argument_name
from tensortap.engines.jax.program import Argument, Program
from tensortap.engines.jax.recording.wishes import is_plain_summary
from tensortap.engines.jax.taps.library import Memory, library
from tensortap.engines.jax.tensors import TENSORS
from tensortap.engines.observe.observation import Observation, RunPlan
from tensortap.engines.observe.watching import Watching
from tensortap.records import Frame, Node, TensorSpec

__all__ = ["KnownArrays", "show_whole"]


class KnownArrays:
    """The arrays of a run that have a name.

    Args:
        plan: what is wanted of the run.
        seen: where nodes of what comes from outside are noted.
        state: tensors that exist before the run, by tensor name.
        variable: makes the node of a part of the state.
        is_known_good: says of an array whether it was looked at when it was made.
    """

    def __init__(
        self,
        plan: RunPlan,
        seen: Observation,
        state: Mapping[str, Any],
        variable: Callable[[str, Any], Node],
        is_known_good: Callable[[Any], bool],
    ) -> None:
        self._is_known_good = is_known_good
        self._plan = plan
        self._seen = seen
        self._variable = variable
        self._made: dict[int, tuple[str, Any]] = {}
        for name, value in plan.inputs.items():
            self._made[id(value)] = (f"{name}:0", value)
        self._inputs = {f"{name}:0" for name in plan.inputs}
        for name, value in state.items():
            self._made[id(value)] = (name, value)
        self._state = frozenset(state)
        self._shown: set[str] = set()
        self._outside: dict[str, int] = {}
        self._waiting: list[tuple[str, str, Any, tuple[Frame, ...]]] = []

    def readable(self) -> Iterator[tuple[str, Any]]:
        """Those whose elements can be read, by tensor name."""
        for tensor, value in self._made.values():
            if TENSORS.is_tensor(value) and TENSORS.readable(value) is not None:
                yield tensor, value

    def returned(self, named: Named, results: Sequence[Any]) -> None:
        """Note what a call returned."""
        for name, value in zip(named.outputs, results, strict=True):
            if name is not None and isinstance(value, jax.Array):
                self._made[id(value)] = (name, value)

    def fed_arguments(self, program: Program, given: Sequence[Any]) -> Sequence[Any]:
        """The arguments of a call, with fed values in the place of those that have a name and are fed."""
        feeds = self._plan.feeds
        if not feeds:
            return given
        arguments = list(given)
        for place, value in enumerate(arguments):
            name = self._made.get(id(value), (f"{argument_name(program, Argument(place))}:0",))[0]
            if name in feeds:
                spec = program.argument_spec(Argument(place))
                arguments[place] = jax.numpy.asarray(TENSORS.fitting(name, feeds[name], spec))
                self._made[id(arguments[place])] = (name, arguments[place])
                self._seen.fed.add(name)
        return arguments

    def name_of(self, program: Program, argument: Argument, value: Any, stack: tuple[Frame, ...] = ()) -> str:
        """The name of what a call is given; of something from outside, which becomes a node at its first use.

        Args:
            program: that is called.
            argument: place among its arguments.
            value: that is given.
            stack: of the call, if it is one of the library: some have no operation by which to know their line.
        """
        known = self._made.get(id(value)) if isinstance(value, (jax.Array, np.ndarray)) else None
        if known is None:
            base = "constant" if program.is_library else argument_name(program, argument)
            number = self._outside[base] = self._outside.get(base, -1) + 1
            name = f"{base}_{number}:0" if number else f"{base}:0"
            self._made[id(value)] = known = (name, value)
            kind = "Placeholder"
            if program.is_library or argument.is_constant:
                kind = "Const"
            elif argument.place in program.updated and TENSORS.is_tensor(value):
                kind = "Variable"
            self._come_from_outside(name, kind, value, stack)
        elif known[0] not in self._shown and (known[0] in self._inputs or known[0] in self._state):
            kind = "Placeholder" if known[0] in self._inputs else "Variable"
            self._come_from_outside(known[0], kind, value, ())
        return known[0]

    def _come_from_outside(self, name: str, kind: str, value: Any, stack: tuple[Frame, ...]) -> None:
        self._shown.add(name)
        self._waiting.append((name, kind, value, stack))

    def show_outside(self) -> None:
        """Show what calls were given from outside since the last time."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._show_outside(*each)

    def _show_outside(self, name: str, kind: str, value: Any, stack: tuple[Frame, ...]) -> None:
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
                stack=stack,
                phase="input",
            )
        self._seen.nodes.append(node)
        array = value if TENSORS.is_tensor(value) else np.asarray(value)
        if TENSORS.readable(array) is None:
            return
        if name in self._plan.captures:
            self._seen.capture(TENSORS, name, array)
        show_whole(self._plan, node, array, self._is_known_good(array))


def show_whole(plan: RunPlan, node: Node, array: Any, is_good: bool = False) -> None:
    """Show a node whose value is there to whoever wants it, and keep it if it is bad."""
    is_muted = plan.watching is not None and not plan.taps and _is_muted(plan.watching, node)
    if is_muted and (is_good or _is_finite(array)):
        return
    bad = plan.watching.bad if plan.watching is not None else None
    if bad is not None:
        bad.begin()
    for tap in plan.all_taps:
        tap(node, 0, array)
    if bad is not None:
        bad.look(node, [array], [], ())


def _is_muted(watching: Watching, node: Node) -> bool:
    """Whether nothing is recorded of a node as long as it is healthy."""
    wanted = watching.wants(node, 0)
    return wanted is not None and all(
        is_plain_summary(op) and getattr(op, "mute_if_healthy", False) for op, _ in wanted
    )


def _is_finite(array: Any) -> bool:
    """Whether there is surely nothing bad in an array: faster than its summary."""
    native = library()
    if native is None or type(array) is not ArrayImpl or type(array.sharding) is not SingleDeviceSharding:
        return False
    if array.dtype.name not in XLA_DTYPES or array.is_deleted():
        return False
    if array.dtype.kind in "biu":
        return True
    array.block_until_ready()
    memory = Memory([array.dtype.name], [array.size])
    return not any(native.look(memory, [array.unsafe_buffer_pointer()], alone=True))
