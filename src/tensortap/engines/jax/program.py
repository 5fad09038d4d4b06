"""What a traced program consists of: operations in the order of their equations, loops and branches as blocks.

A **site** is one output of one equation (or one variable that a loop hands to its body), with a number of its own: what
can be tapped or fed. Calls that only group equations (nested `jit`, custom derivatives, `checkpoint`, `shard_map`) are
looked through; the little computations inside `reduce`, `scatter`, `sort` or a kernel are not looked into.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax._src.interpreters import partial_eval as pe
from jax.extend import core as jex_core
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from tensortap.engines.jax.dtypes import READABLE
from tensortap.engines.jax.lines import is_library_file, is_of_jax, is_optimizer_stack, stack_of
from tensortap.records import Frame, TensorSpec

__all__ = [
    "Argument",
    "Block",
    "Loop",
    "Op",
    "Program",
    "Site",
    "Step",
    "Value",
    "scope_of",
    "updated_arguments",
]

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
_STEEP = frozenset(
    "sqrt rsqrt cbrt log log1p pow integer_pow div acos asin acosh atanh erf_inv exp tanh logistic".split()  # noqa: SIM905
)
"""Operations whose derivative is not a constant: gradients belong to them rather than to what else is on their line."""

_LOOPS = ("scan", "while", "cond", "loop_carry", "loop_slice")
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_TRANSFORM = re.compile(r"\b\w+\(([^()]*)\)")
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.\-/]")
_FIRST_PART = re.compile(r"^(\[[^\]]*\]|\.?\w+)")
_ATTRIBUTE_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Site:
    """One output of an operation."""

    number: int
    op: int
    slot: int
    spec: TensorSpec
    is_float: bool


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the program, or a constant that it closes over."""

    place: int
    is_constant: bool = False


Value = Site | Argument | Any
"""What a variable stands for; anything else is the value of a literal."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop or a branch that operations are executed in.

    Attributes:
        kind: `scan`, `while` or `cond`.
        line: of the user's program.
        length: how many iterations a scan has; -1 if it is not known.
        reverse: the scan begins with the last element.
    """

    kind: str
    line: Frame | None
    length: int = -1
    reverse: bool = False


@dataclass(slots=True)
class Op:
    """One operation.

    Attributes:
        primitive: its name.
        inputs: what it is given.
        outs: its sites.
        scope: names of scopes, functions and modules around it, empty or ending in a slash.
        traceback: by which a gradient finds the operation it belongs to.
        loops: what it is executed in, outermost first.
        is_differentiated: it was traced by automatic differentiation.
        forward: of a gradient, the place of the operation it belongs to.
        is_early: part of a derivative that is worked out on the way forward.
    """

    primitive: str
    inputs: tuple[Value, ...]
    outs: tuple[Site, ...]
    scope: str
    stack: tuple[Frame, ...]
    traceback: Any
    is_backward: bool
    is_optimizer: bool
    attributes: dict[str, Any]
    loops: tuple[Loop, ...]
    is_differentiated: bool = False
    forward: int | None = None
    is_early: bool = False


@dataclass(slots=True)
class Step:
    """One equation, with what is inside it.

    Attributes:
        outs: a site for each output; None where there is nothing to tap.
        inner: blocks by parameter; several for the branches of a `cond`.
        control: the site that says which branch is executed.
        marks: of a `while`, a site in its body and one behind it. How often it ran is counted by them: its condition
            may never be executed, if XLA knows the answer.
        leaving: sites of what an iteration of a loop hands on.
        copies: on how many devices it is executed.
    """

    eqn: JaxprEqn
    outs: tuple[Site | None, ...]
    inner: dict[str, list[Block]] = field(default_factory=dict)
    control: Site | None = None
    loop: Loop | None = None
    leaving: frozenset[int] = frozenset()
    copies: int = 1
    marks: tuple[Site, Site] | None = None


@dataclass(slots=True)
class Block:
    """The equations of one jaxpr; `entry` has sites of variables that a loop hands in, `copies` on how many devices."""

    jaxpr: Jaxpr
    entry: tuple[Site | None, ...] = ()
    copies: int = 1
    steps: list[Step] = field(default_factory=list)

    def sites(self) -> Iterator[Site]:
        """All sites in it, those of inner blocks included."""
        yield from (site for site in self.entry if site is not None)
        for step in self.steps:
            yield from (site for site in step.outs if site is not None)
            for blocks in step.inner.values():
                for block in blocks:
                    yield from block.sites()


def spec_of_aval(aval: Any) -> TensorSpec:
    """Dtype and shape of a value, in the names that records use."""
    shape = tuple(d if isinstance(d, int) else None for d in getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", None)
    return TensorSpec(str(getattr(dtype, "name", dtype)), shape)


def _is_float(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    try:
        return dtype is not None and bool(
            np.issubdtype(dtype, np.inexact)
            or (np.dtype(dtype).kind in "V" and "float" in np.dtype(dtype).name)
        )
    except TypeError:  # a key of a random generator
        return False


class Program:
    """A traced program, looked through.

    Attributes:
        closed: the program, without what nobody uses.
        ops: in the order of equations.
        root: its blocks.
        outputs: what it returns.
        argument_names: paths of its arguments, as the caller wrote them.
        updated: places of the arguments that it returns, updated.
        is_library: it is a function of JAX itself, or a single operation.
    """

    def __init__(self, closed: ClosedJaxpr) -> None:
        jaxpr, _ = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
        self.closed = ClosedJaxpr(jaxpr, closed.consts)
        self.ops: list[Op] = []
        self.sites: list[Site] = []
        self.controls: set[int] = set()
        self.leaving: set[int] = set()
        info = closed.jaxpr.debug_info
        names = info.arg_names if info is not None else None
        self.argument_names = tuple(names or ("",) * len(jaxpr.invars))
        self.name = str(getattr(info, "func_name", "") or "")
        self.is_library = is_of_jax(getattr(info, "func_filename", None))
        self.has_gradients = False
        self.updated = updated_arguments(closed)
        env: dict[Var, Value] = {}
        for place, var in enumerate(jaxpr.invars):
            env[var] = Argument(place)
        for place, var in enumerate(jaxpr.constvars):
            env[var] = Argument(place, is_constant=True)
        self.root = Block(jaxpr)
        self.outputs = self._walk(self.root, env, "", False, None, (), 1)
        self._find_gradients()

    def argument_spec(self, argument: Argument) -> TensorSpec:
        """Dtype and shape of an argument."""
        jaxpr = self.closed.jaxpr
        variables = jaxpr.constvars if argument.is_constant else jaxpr.invars
        return spec_of_aval(variables[argument.place].aval)

    # --- looking through ---------------------------------------------------------------------------

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
                _joined(scope, own_scope),
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
        site = Site(len(self.sites), op, slot, spec_of_aval(aval), _is_float(aval))
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

    # --- gradients ---------------------------------------------------------------------------------

    def _find_gradients(self) -> None:
        """Find the operation that each gradient belongs to.

        Part of a derivative is worked out on the way forward, such as the 0.5/√x of a root: used by nothing but
        gradients, on the line of the root, from its input or output. It counts as a gradient.
        """
        places: dict[tuple[Frame, ...], list[int]] = {}
        for place, op in enumerate(self.ops):
            if not op.is_backward and op.stack and op.primitive not in _LOOPS:
                places.setdefault(op.stack, []).append(place)
        only_gradients = self._used_by_gradients_only()
        for place, op in enumerate(self.ops):
            if op.is_backward:
                op.forward = self._forward_of(op, places.get(op.stack, ()))
            elif op.is_differentiated and place in only_gradients and op.primitive not in _LOOPS:
                before = [each for each in places.get(op.stack, ()) if each < place]
                steep = [each for each in self._related(op, before) if self.ops[each].primitive in _STEEP]
                if steep:
                    op.forward = steep[0]
                    op.is_backward = op.is_early = True

    def _forward_of(self, op: Op, places: Sequence[int]) -> int | None:
        related = self._related(op, places)
        steep = [each for each in related if self.ops[each].primitive in _STEEP]
        return next(iter(steep or related or places), None)

    def _related(self, op: Op, places: Sequence[int]) -> list[int]:
        """Those of some operations that share a tensor with another one: are given it, too, or made it."""
        given = {each for each in op.inputs if isinstance(each, (Site, Argument))}
        return [
            each
            for each in places
            if self.ops[each] is not op
            and any(
                value in given
                for value in (*self.ops[each].inputs, *self.ops[each].outs)
                if isinstance(value, (Site, Argument))
            )
        ]

    def _used_by_gradients_only(self) -> set[int]:
        users: dict[int, list[int]] = {}
        for place, op in enumerate(self.ops):
            for value in op.inputs:
                if isinstance(value, Site):
                    users.setdefault(value.number, []).append(place)
        returned = {value.number for value in self.outputs if isinstance(value, Site)}
        found: set[int] = set()
        for place in range(len(self.ops) - 1, -1, -1):
            sites = [site.number for site in self.ops[place].outs]
            uses = [user for number in sites for user in users.get(number, ())]
            if (
                uses
                and not returned.intersection(sites)
                and all(self.ops[user].is_backward or user in found for user in uses)
            ):
                found.add(place)
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
                scope = _joined(scope, _clean(str(eqn.params.get("name", ""))))
        elif name == "shard_map":
            copies *= int(getattr(eqn.params.get("mesh"), "size", 1))
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


def updated_arguments(closed: ClosedJaxpr) -> frozenset[int]:
    """Places of the arguments of a program that are returned under the same path: parameters, most likely."""
    info, given = closed.jaxpr.debug_info, {}
    paths = getattr(info, "arg_names", None) or ()
    for place, (path, aval) in enumerate(zip(paths, closed.in_avals, strict=False)):
        end = _FIRST_PART.sub("", str(path or ""))
        if end:
            given[end, aval.str_short()] = place
    returned = zip(getattr(info, "result_paths", None) or (), closed.out_avals, strict=False)
    keys = ((end, aval.str_short()) for path, aval in returned for end in _endings(str(path or "")))
    return frozenset(given[key] for key in keys if key in given)


def _endings(path: str) -> Iterator[str]:
    """The path of a result without its first parts: `result[0]['w']`, `[0]['w']`, `['w']`."""
    while path:
        yield path
        path, before = _FIRST_PART.sub("", path), path
        if path == before:
            return


def _opened(inner: Any) -> tuple[Jaxpr, Sequence[Any]]:
    return (inner.jaxpr, inner.consts) if isinstance(inner, jex_core.ClosedJaxpr) else (inner, ())


def scope_of(stack: str) -> tuple[str, bool]:
    """The scopes of a name stack without the transformations around them, and whether it is a gradient's.

    >>> scope_of("transpose(jvp(Model))/Dense_0")
    ('Model/Dense_0/', True)
    """
    backward = "transpose(" in stack
    while (plain := _TRANSFORM.sub(r"\1", stack)) != stack:
        stack = plain
    return _joined("", _clean(stack)), backward


def _clean(text: str) -> str:
    return "/".join(part for part in _UNUSABLE.sub("_", text).split("/") if part.strip("_"))


def _joined(scope: str, inner: str) -> str:
    return f"{scope}{inner.rstrip('/')}/" if inner.rstrip("/") else scope


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
