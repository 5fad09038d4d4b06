"""A traced program, looked through."""

from __future__ import annotations

from jax._src.interpreters import partial_eval as pe
from jax.extend.core import ClosedJaxpr

from tensortap.engines.jax.program.gradients import find_gradients
from tensortap.engines.jax.program.owner import is_of_library
from tensortap.engines.jax.program.parts import Argument, Block, Loop, Op, Site, Step, Value, spec_of_aval
from tensortap.engines.jax.program.scopes import scope_of
from tensortap.engines.jax.program.updated import updated_arguments, updating_results
from tensortap.engines.jax.program.walk import Walk
from tensortap.records import TensorSpec

__all__ = [
    "Argument",
    "Block",
    "Loop",
    "Op",
    "Program",
    "Site",
    "Step",
    "Value",
    "is_of_library",
    "scope_of",
    "updated_arguments",
]


class Program:
    """A traced program, looked through.

    Attributes:
        closed: the program, without what nobody uses.
        ops: in the order of equations.
        root: its blocks.
        outputs: what it returns.
        argument_names: paths of its arguments, as the caller wrote them.
        updated: places of the arguments that it returns, updated.
        updating: which of its results takes the place of which argument, by the place of the argument.
        is_library: it is a function of JAX itself, or a single operation.
        controls, leaving, has_gradients: as `Walk` says.
    """

    def __init__(self, closed: ClosedJaxpr) -> None:
        jaxpr, _ = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
        self.closed = ClosedJaxpr(jaxpr, closed.consts)
        info = closed.jaxpr.debug_info
        names = info.arg_names if info is not None else None
        self.argument_names = tuple(names or ("",) * len(jaxpr.invars))
        self.name = str(getattr(info, "func_name", "") or "")
        self.is_library = is_of_library(closed.jaxpr)
        self.updated = updated_arguments(closed)
        self.updating = updating_results(closed)
        walk = Walk()
        self.root, self.outputs = walk.through(jaxpr)
        self.ops, self.sites = walk.ops, walk.sites
        self.controls, self.leaving = walk.controls, walk.leaving
        self.has_gradients = walk.has_gradients
        find_gradients(self.ops, self.outputs)

    def argument_spec(self, argument: Argument) -> TensorSpec:
        """Dtype and shape of an argument."""
        jaxpr = self.closed.jaxpr
        variables = jaxpr.constvars if argument.is_constant else jaxpr.invars
        return spec_of_aval(variables[argument.place].aval)
