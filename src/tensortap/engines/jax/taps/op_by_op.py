"""Executing a program operation by operation, each compiled by itself: another way to look into it.

With taps, what XLA fuses differs from the program's own executable. If nothing is bad in that, nothing is fused here at
all. Loops are loops of Python. What runs on several devices by itself (`shard_map`) and kernels are one operation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax.extend.core import ClosedJaxpr, Literal, Var

from tensortap.engines.jax.program import Block, Program, Site, Step
from tensortap.engines.jax.taps.kinds import VALUE
from tensortap.engines.jax.taps.replay import Execution
from tensortap.engines.jax.tensors import host_array
from tensortap.errors import TensortapError
from tensortap.ops import kernel
from tensortap.pill import PILL_SIZE, kinds_of

__all__ = ["OpByOp"]

_WIDTH = PILL_SIZE + 8
_MOST_SECS = 120.0
"""A program of this many seconds is looked at up to there: whoever waits for the answer trains."""


class _OutOfTime(TensortapError):
    """It takes too long."""


class OpByOp:
    """Executes one call.

    Attributes:
        records: what was seen, in order.
        is_whole: whether all of it was executed.
    """

    def __init__(self, program: Program, taps: Mapping[int, int]) -> None:
        self._program = program
        self._taps = taps
        self._until = time.monotonic() + _MOST_SECS
        self.records: list[Execution] = []
        self.is_whole = True

    def run(self, arguments: Sequence[Any]) -> None:
        """Execute the program."""
        jaxpr = self._program.closed.jaxpr
        env = dict(zip(jaxpr.invars, arguments, strict=True))
        env.update(zip(jaxpr.constvars, self._program.closed.consts, strict=True))
        try:
            self._block(self._program.root, env, ())
        except _OutOfTime:
            self.is_whole = False

    def _block(self, block: Block, env: dict[Var, Any], iterations: tuple[int, ...]) -> list[Any]:
        last = core.last_used(block.jaxpr)
        for var, site in zip(block.jaxpr.invars, block.entry, strict=False):
            self._note(site, env[var], iterations)
        for step in block.steps:
            if time.monotonic() > self._until:
                raise _OutOfTime
            values = [_read(env, atom) for atom in step.eqn.invars]
            results = self._step(step, values, iterations)
            for var, site, value in zip(step.eqn.outvars, step.outs, results, strict=True):
                self._note(site, value, iterations)
                env[var] = value
            core.clean_up_dead_vars(step.eqn, env, last)
        return [_read(env, atom) for atom in block.jaxpr.outvars]

    def _step(self, step: Step, values: list[Any], iterations: tuple[int, ...]) -> Sequence[Any]:
        eqn = step.eqn
        kind = step.loop.kind if step.loop is not None else ""
        if kind == "scan":
            return self._scan(step, values, iterations)
        if kind == "while":
            return self._while(step, values, iterations)
        if kind == "cond":
            branches = step.inner["branches"]
            choice = min(max(int(values[0]), 0), len(branches) - 1)
            return self._inside(
                branches[choice], eqn.params["branches"][choice], values[1:], (*iterations, -1)
            )
        if step.inner and eqn.primitive.name != "shard_map":
            ((parameter, (block,)),) = step.inner.items()
            return self._inside(block, eqn.params[parameter], values, iterations)
        with eqn.ctx.manager:
            made = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
        return made if eqn.primitive.multiple_results else [made]

    def _inside(
        self, block: Block, inner: Any, values: Sequence[Any], iterations: tuple[int, ...]
    ) -> list[Any]:
        env = dict(zip(block.jaxpr.invars, values, strict=True))
        if isinstance(inner, ClosedJaxpr):
            env.update(zip(block.jaxpr.constvars, inner.consts, strict=True))
        return self._block(block, env, iterations)

    def _scan(self, step: Step, values: list[Any], iterations: tuple[int, ...]) -> list[Any]:
        params, (block,) = step.eqn.params, step.inner["jaxpr"]
        constants, carried, length = params["num_consts"], params["num_carry"], params["length"]
        fixed, carry = values[:constants], values[constants : constants + carried]
        slices = values[constants + carried :]
        kept: list[list[Any]] = []
        order = range(length - 1, -1, -1) if params["reverse"] else range(length)
        for index in order:
            begins = len(self.records)
            given = [*fixed, *carry, *(each[index] for each in slices)]
            made = self._inside(block, params["jaxpr"], given, (*iterations, index))
            carry = made[:carried]
            kept.append(made[carried:])
            if self._hands_on_bad(step, begins):
                break  # in later ones everything comes bad from this one
        return [*carry, *self._stacked(step, kept, carried, length, params["reverse"])]

    def _stacked(
        self, step: Step, kept: list[list[Any]], carried: int, length: int, reverse: bool
    ) -> Iterator[Any]:
        """What a scan returns of its iterations; those after a bad one were not executed and are NaN."""
        for place, var in enumerate(step.eqn.outvars[carried:]):
            rows = [each[place] for each in kept]
            missing = length - len(rows)
            if missing:
                rows.extend([_unknown(var.aval.shape[1:], var.aval.dtype)] * missing)
            yield jax.numpy.stack(rows[::-1] if reverse else rows)

    def _while(self, step: Step, values: list[Any], iterations: tuple[int, ...]) -> list[Any]:
        params = step.eqn.params
        tests, bodies = params["cond_nconsts"], params["body_nconsts"]
        for_test, for_body = values[:tests], values[tests : tests + bodies]
        state, number = values[tests + bodies :], 0
        (test,), (body,) = step.inner["cond_jaxpr"], step.inner["body_jaxpr"]
        while True:
            begins = len(self.records)
            inside = (*iterations, number)
            (goes_on,) = self._inside(test, params["cond_jaxpr"], [*for_test, *state], inside)
            if not np.any(goes_on):
                return list(state)
            state = self._inside(body, params["body_jaxpr"], [*for_body, *state], inside)
            if self._hands_on_bad(step, begins):
                return list(state)
            number += 1

    def _hands_on_bad(self, step: Step, begins: int) -> bool:
        return any(each.site.number in step.leaving and kinds_of(each.row) for each in self.records[begins:])

    def _note(self, site: Site | None, value: Any, iterations: tuple[int, ...]) -> None:
        if site is None or site.number not in self._taps:
            return
        array = host_array(value)
        if array is None:
            return
        row = np.zeros(_WIDTH)
        pill = kernel.summary(array)
        row[: len(pill)] = pill[:_WIDTH]
        data = np.ascontiguousarray(array).tobytes() if self._taps[site.number] == VALUE else None
        self.records.append(Execution(site, row, data, iterations))


def _read(env: Mapping[Var, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def _unknown(shape: tuple[int, ...], dtype: Any) -> Any:
    is_float = jax.numpy.issubdtype(dtype, jax.numpy.inexact)
    return jax.numpy.full(shape, np.nan if is_float else 0, dtype)
