"""A program with taps: the same equations, with taps behind those that are watched, feeds for results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax._src import core
from jax.extend.core import ClosedJaxpr, Jaxpr

from tensortap.engines.jax.profiling.labels import label_text
from tensortap.engines.jax.program import Block, Program, Step
from tensortap.engines.jax.taps.bounds import Bounds
from tensortap.engines.jax.taps.kinds import PILL, VALUE
from tensortap.engines.jax.taps.primitives import TAP_EFFECT, new_feed, new_tap

__all__ = ["Wishes", "tapped"]


@dataclass(frozen=True)
class Wishes:
    """What is wanted of a program.

    Attributes:
        taps: what to take of a site, by its number: `PILL`, `VALUE` or `CHECK`.
        feeds: under which number the value is stored that takes the place of a site, by its number.
        label: the number by which its operations are found again in what is measured; None if nothing is.
        bounds: of sites that are checked, the bounds beyond which they are recorded although they are good.
    """

    taps: frozenset[tuple[int, int]]
    feeds: frozenset[tuple[int, int]] = frozenset()
    label: int | None = None
    bounds: frozenset[tuple[int, Bounds]] = frozenset()


def tapped(program: Program, wishes: Wishes, native: bool) -> ClosedJaxpr:
    """The program with what is wished for in it."""
    taps, feeds = dict(wishes.taps), dict(wishes.feeds)
    _mark_loops(program.root, taps, {*taps, *feeds})
    rewriter = _Rewriter(taps, feeds, native, wishes.label, dict(wishes.bounds))
    return ClosedJaxpr(rewriter.block(program.root), program.closed.consts)


def _mark_loops(block: Block, taps: dict[int, int], wanted: set[int]) -> None:
    """Tap what it takes to count the iterations of loops in which something is wanted."""
    for step in block.steps:
        inner = [each for blocks in step.inner.values() for each in blocks]
        if step.marks is not None and any(site.number in wanted for each in inner for site in each.sites()):
            for site in step.marks:
                taps.setdefault(site.number, PILL)
        for each in inner:
            _mark_loops(each, taps, wanted)


class _Rewriter:
    def __init__(
        self,
        taps: Mapping[int, int],
        feeds: Mapping[int, int],
        native: bool,
        label: int | None,
        bounds: Mapping[int, Bounds],
    ) -> None:
        self._bounds = bounds
        self._taps, self._feeds, self._native, self._label = taps, feeds, native, label
        self._wanted = set(taps) | set(feeds)

    def block(self, block: Block) -> Jaxpr:
        """The jaxpr of a block."""
        jaxpr = block.jaxpr
        if not self._has_wishes(block):
            return jaxpr
        eqns: list[Any] = []
        for var, site in zip(jaxpr.invars, block.entry, strict=False):
            if site is not None and site.number in self._taps and jaxpr.eqns:
                eqns.append(self._tap(var, site.number, jaxpr.eqns[0]))
        for step in block.steps:
            eqns.extend(self._step(step))
        return jaxpr.replace(eqns=eqns, effects={*jaxpr.effects, *self._effects(block)})

    def _step(self, step: Step) -> Iterator[Any]:
        eqn = self._labelled(step)
        if step.inner and any(self._has_wishes(block) for blocks in step.inner.values() for block in blocks):
            params = dict(eqn.params)
            for name, blocks in step.inner.items():
                made = [self.block(block) for block in blocks]
                old = eqn.params[name]
                if name == "branches":
                    params[name] = tuple(_like(each, jaxpr) for each, jaxpr in zip(old, made, strict=True))
                else:
                    params[name] = _like(old, made[0])
            added = {
                effect for blocks in step.inner.values() for each in blocks for effect in self._effects(each)
            }
            if "branches" in step.inner and step.control is not None and added:
                yield new_tap(eqn.invars[0], step.control.number, VALUE, self._native, step.eqn)
            added = {
                effect for blocks in step.inner.values() for each in blocks for effect in self._effects(each)
            }
            eqn = eqn.replace(params=params, effects={*eqn.effects, *added})
        fed = [
            (place, var, site)
            for place, (var, site) in enumerate(zip(eqn.outvars, step.outs, strict=True))
            if site is not None and site.number in self._feeds
        ]
        if fed:
            outvars = list(eqn.outvars)
            for place, var, _ in fed:
                outvars[place] = core.DropVar(var.aval)
            eqn = eqn.replace(outvars=outvars)
        yield eqn
        for _, var, fed_site in fed:
            yield new_feed(var, self._feeds[fed_site.number], self._native, step.eqn)
        for var, site in zip(step.eqn.outvars, step.outs, strict=True):
            if site is not None and site.number in self._taps and not isinstance(var, core.DropVar):
                yield self._tap(var, site.number, step.eqn)

    def _tap(self, var: Any, number: int, beside: Any) -> Any:
        return new_tap(var, number, self._taps[number], self._native, beside, self._bounds.get(number))

    def _labelled(self, step: Step) -> Any:
        made = next((site for site in step.outs if site is not None), None)
        if self._label is None or made is None:
            return step.eqn
        info = step.eqn.source_info
        stack = info.name_stack.extend(label_text(self._label, made.op))
        return step.eqn.replace(source_info=info.replace(name_stack=stack))

    def _effects(self, block: Block) -> set[Any]:
        return {TAP_EFFECT} if any(site.number in self._wanted for site in block.sites()) else set()

    def _has_wishes(self, block: Block) -> bool:
        return self._label is not None or any(site.number in self._wanted for site in block.sites())


def _like(old: Any, jaxpr: Jaxpr) -> Any:
    return old.replace(jaxpr=jaxpr) if isinstance(old, ClosedJaxpr) else jaxpr
