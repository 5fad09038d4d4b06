"""Looking through a traced program: its operations in the order of their equations, and what is inside what.

Calls that only group equations (nested `jit`, custom derivatives, `checkpoint`, `shard_map`) are looked through; the
little computations inside `reduce`, `scatter`, `sort` or a kernel are not looked into.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend import core as jex_core
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from tensortap.engines.jax.dtypes import READABLE
from tensortap.engines.jax.lines import is_library_file, is_of_jax, is_optimizer_stack, stack_of
from tensortap.engines.jax.program.parts import (
    Argument,
    Block,
    Loop,
    Op,
    Site,
    Step,
    Value,
    is_float,
    spec_of_aval,
)
from tensortap.engines.jax.program.scopes import cleaned, joined, scope_of

__all__ = ["Walk"]

_CALLS = frozenset(
    [
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "checkpoint",
        "remat",
        "remat2",
        "shard_map",
    ]
)
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_ATTRIBUTE_LENGTH = 80


class Walk:
    """Notes what it comes by.

    Attributes:
        ops: in the order of equations.
        sites: by their numbers.
        controls: numbers of sites that decide about branches.
        leaving: numbers of sites that an iteration of a loop hands on.
        has_gradients: whether some of the operations are gradients.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.sites: list[Site] = []
        self.controls: set[int] = set()
        self.leaving: set[int] = set()
        self.has_gradients = False

    def through(self, jaxpr: Jaxpr) -> tuple[Block, tuple[Value, ...]]:
        """Go through a whole program: its blocks, and what it returns."""
        env: dict[Var, Value] = {var: Argument(place) for place, var in enumerate(jaxpr.invars)}
        env.update((var, Argument(place, is_constant=True)) for place, var in enumerate(jaxpr.constvars))
        root = Block(jaxpr)
        return root, self._walk(root, env, "", False, None, (), 1)

    def _walk(
        self,
        block: Block,
        env: dict[Var, Value],
        scope: str,
        backward: bool,
        traceback: Any,
        loops: tuple[Loop, ...],
        copies: int,
        differentiated: bool = False,
    ) -> tuple[Value, ...]:
        """Note the equations of a block; what its results are.

        Args:
            traceback: takes the place of those of the equations, which are a library's.
        """

        def read(atom: Any) -> Value:
            return atom.val if isinstance(atom, Literal) else env.get(atom)

        for eqn in block.jaxpr.eqns:
            info = eqn.source_info
            own_scope, own_backward = scope_of(str(info.name_stack))
            here = _Here(
                joined(scope, own_scope),
                backward or own_backward,
                traceback or info.traceback,
                loops,
                copies,
            )
            here.differentiated = differentiated or "jvp(" in str(info.name_stack)
            self.has_gradients |= here.backward
            inputs = tuple(read(atom) for atom in eqn.invars)
            name = eqn.primitive.name
            step: Step | None = None
            if name in _CALLS:
                step = self._call(eqn, inputs, env, here)
            elif name == "scan":
                step = self._scan(eqn, inputs, here)
            elif name == "while":
                step = self._while(eqn, inputs, here)
            elif name == "cond":
                step = self._cond(eqn, inputs, here)
            if step is None:
                step = Step(eqn, self._op(eqn, inputs, here), copies=copies)
            block.steps.append(step)
            env.update((v, site) for v, site in zip(eqn.outvars, step.outs, strict=True) if site is not None)
        return tuple(read(atom) for atom in block.jaxpr.outvars)

    def _op(
        self, eqn: JaxprEqn, inputs: Sequence[Value], here: _Here, primitive: str = "", avals: Any = None
    ) -> tuple[Site, ...]:
        stack = stack_of(here.traceback)
        if not stack and here.loops and here.loops[-1].line is not None:
            stack = (here.loops[-1].line,)  # a function of the library itself, handed to a loop or a branch
        specs = [var.aval for var in eqn.outvars] if avals is None else avals
        place = len(self.ops)
        outs = tuple(self._site(place, slot, aval) for slot, aval in enumerate(specs))
        self.ops.append(
            Op(
                primitive or eqn.primitive.name,
                tuple(inputs),
                outs,
                here.scope,
                stack,
                here.traceback,
                here.backward,
                is_optimizer_stack(here.traceback),
                {} if primitive else _attributes(eqn, inputs),
                here.loops,
                here.differentiated,
            )
        )
        return outs

    def _results(self, eqn: JaxprEqn, sources: Sequence[tuple[Value, ...]], here: _Here) -> tuple[Site, ...]:
        """What a loop or a branch returns: an operation for each, because each comes of something else inside."""
        return tuple(
            self._op(eqn, source, here, eqn.primitive.name, [var.aval])[0]
            for source, var in zip(sources, eqn.outvars, strict=True)
        )

    def _site(self, op: int, slot: int, aval: Any) -> Site:
        site = Site(len(self.sites), op, slot, spec_of_aval(aval), is_float(aval))
        self.sites.append(site)
        return site

    def _control(self, aval: Any) -> Site:
        site = self._site(-1, 0, aval)
        self.controls.add(site.number)
        return site

    def _floats(self, values: Sequence[Value]) -> frozenset[int]:
        found = frozenset(each.number for each in values if isinstance(each, Site) and each.is_float)
        self.leaving |= found
        return found

    # --- calls and control flow --------------------------------------------------------------------

    def _call(
        self, eqn: JaxprEqn, inputs: tuple[Value, ...], env: dict[Var, Value], here: _Here
    ) -> Step | None:
        parameter = next((each for each in _INNER if each in eqn.params), None)
        if parameter is None:
            return None
        jaxpr, consts = _opened(eqn.params[parameter])
        if len(jaxpr.invars) != len(eqn.invars) or len(jaxpr.outvars) != len(eqn.outvars):
            return None
        inner = Block(jaxpr)
        inner_env: dict[Var, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        inner_env.update(zip(jaxpr.constvars, consts, strict=False))
        scope, traceback = here.scope, None
        copies = here.copies
        name = eqn.primitive.name
        if name in ("jit", "pjit"):
            info = jaxpr.debug_info
            file = getattr(info, "func_filename", None)
            if is_of_jax(file):
                traceback = here.traceback  # of whoever called it first, if taken from inside: it is cached
            elif not is_library_file(file):
                scope = joined(scope, cleaned(str(eqn.params.get("name", ""))))
        elif name == "shard_map":
            copies *= _parts_of(eqn.params)
        outs = self._walk(
            inner, inner_env, scope, here.backward, traceback, here.loops, copies, here.differentiated
        )
        env.update(zip(eqn.outvars, outs, strict=True))
        return Step(eqn, (None,) * len(eqn.outvars), {parameter: [inner]})

    def _scan(self, eqn: JaxprEqn, inputs: tuple[Value, ...], here: _Here) -> Step:
        jaxpr, consts = _opened(eqn.params["jaxpr"])
        constants, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        stack = stack_of(here.traceback)
        loop = Loop("scan", stack[-1] if stack else None, eqn.params["length"], eqn.params["reverse"])
        inside = here.inside(loop)
        entry: list[Site | None] = [None] * constants
        env: dict[Var, Value] = dict(zip(jaxpr.invars[:constants], inputs, strict=False))
        env.update(zip(jaxpr.constvars, consts, strict=False))
        for place, var in enumerate(jaxpr.invars[constants:], constants):
            kind = "loop_carry" if place < constants + carried else "loop_slice"
            (site,) = self._op(eqn, (inputs[place],), inside, kind, [var.aval])
            entry.append(site)
            env[var] = site
        body = Block(jaxpr, tuple(entry), here.copies)
        outs = self._walk(
            body, env, here.scope, here.backward, None, inside.loops, here.copies, here.differentiated
        )
        results = self._results(eqn, [(each,) for each in outs], here)
        return Step(
            eqn, results, {"jaxpr": [body]}, loop=loop, leaving=self._floats(outs), copies=here.copies
        )

    def _while(self, eqn: JaxprEqn, inputs: tuple[Value, ...], here: _Here) -> Step:
        stack = stack_of(here.traceback)
        loop = Loop("while", stack[-1] if stack else None)
        inside = here.inside(loop)
        tests, bodies = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = inputs[tests + bodies :]
        test_jaxpr, test_consts = _opened(eqn.params["cond_jaxpr"])
        body_jaxpr, body_consts = _opened(eqn.params["body_jaxpr"])
        entry: list[Site | None] = [None] * bodies
        env: dict[Var, Value] = dict(zip(body_jaxpr.invars, inputs[tests : tests + bodies], strict=False))
        env.update(zip(body_jaxpr.constvars, body_consts, strict=False))
        sites = []
        for value, var in zip(carried, body_jaxpr.invars[bodies:], strict=True):
            (site,) = self._op(eqn, (value,), inside, "loop_carry", [var.aval])
            entry.append(site)
            sites.append(site)
            env[var] = site
        test_env: dict[Var, Value] = dict(zip(test_jaxpr.invars, (*inputs[:tests], *sites), strict=False))
        test_env.update(zip(test_jaxpr.constvars, test_consts, strict=False))
        test = Block(test_jaxpr)
        self._walk(
            test, test_env, here.scope, here.backward, None, inside.loops, here.copies, here.differentiated
        )
        body = Block(body_jaxpr, tuple(entry), here.copies)
        outs = self._walk(
            body, env, here.scope, here.backward, None, inside.loops, here.copies, here.differentiated
        )
        results = self._results(eqn, [(each,) for each in outs], here)
        inner = {"cond_jaxpr": [test], "body_jaxpr": [body]}
        pairs = zip(sites, results, strict=True)
        readable = [(each, result) for each, result in pairs if each.spec.dtype in READABLE]
        # What counts is often known to XLA before the loop has run.
        marks = max(readable, key=lambda pair: pair[0].is_float, default=None)
        return Step(eqn, results, inner, None, loop, self._floats(outs), here.copies, marks)

    def _cond(self, eqn: JaxprEqn, inputs: tuple[Value, ...], here: _Here) -> Step:
        stack = stack_of(here.traceback)
        loop = Loop("cond", stack[-1] if stack else None)
        inside = here.inside(loop)
        blocks, results = [], []
        for branch in eqn.params["branches"]:
            jaxpr, consts = _opened(branch)
            env: dict[Var, Value] = dict(zip(jaxpr.invars, inputs[1:], strict=False))
            env.update(zip(jaxpr.constvars, consts, strict=False))
            block = Block(jaxpr)
            outs = self._walk(
                block, env, here.scope, here.backward, None, inside.loops, here.copies, here.differentiated
            )
            results.append(outs)
            blocks.append(block)
        sources = [(inputs[0], *each) for each in zip(*results, strict=True)]
        outs = self._results(eqn, sources, here)
        control = self._control(eqn.invars[0].aval)
        return Step(eqn, outs, {"branches": blocks}, control, loop, copies=here.copies)


@dataclass(slots=True)
class _Here:
    """Where an equation is."""

    scope: str
    backward: bool
    traceback: Any
    loops: tuple[Loop, ...]
    copies: int
    differentiated: bool = False

    def inside(self, loop: Loop) -> _Here:
        return _Here(
            self.scope, self.backward, self.traceback, (*self.loops, loop), self.copies, self.differentiated
        )


def _parts_of(parameters: Mapping[str, Any]) -> int:
    """On how many parts of its arguments a `shard_map` is executed: those of the axes that it names."""
    sizes = dict(getattr(parameters.get("mesh"), "shape", {}))
    named = parameters.get("newly_manual_axes", parameters.get("manual_axes", sizes))
    return math.prod(sizes[axis] for axis in named if axis in sizes)


def _opened(inner: Any) -> tuple[Jaxpr, Sequence[Any]]:
    return (inner.jaxpr, inner.consts) if isinstance(inner, jex_core.ClosedJaxpr) else (inner, ())


def _attributes(eqn: JaxprEqn, inputs: Sequence[Value]) -> dict[str, Any]:
    """The parameters of an equation that say something, and its operands that are plain numbers."""
    found: dict[str, Any] = {}
    for name, value in eqn.params.items():
        if value is None or "jaxpr" in name or name in ("sharding", "out_sharding"):
            continue
        if isinstance(value, (int, float)):
            found[name] = value
        elif len(text := str(value)) <= _ATTRIBUTE_LENGTH and "\n" not in text:
            found[name] = text
    for place, value in enumerate(inputs):
        if value is not None and not isinstance(value, (Site, Argument)) and np.ndim(value) == 0:
            number = np.asarray(value)
            found[f"operand_{place}"] = float(number) if number.dtype.kind == "f" else str(value)
    return found
