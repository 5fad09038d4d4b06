"""The equations that are added to a program: a tap, which returns nothing, and a feed, which returns a fed value."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import core, effects, sharding_impls
from jax._src.interpreters import mlir
from jax.extend.core import Primitive

from tensortap.engines.jax.taps import portable
from tensortap.engines.jax.taps.bounds import Bounds

__all__ = ["TAP_EFFECT", "bad_kinds", "feed_p", "new_feed", "new_tap", "tap_p"]


class TapEffect(effects.Effect):  # type: ignore[misc]
    """Keeps taps, whose results nobody uses, from being removed."""

    def __str__(self) -> str:
        return "Tap"

    def __hash__(self) -> int:
        return hash(TapEffect)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TapEffect)


TAP_EFFECT = TapEffect()
for allowed in (effects.lowerable_effects, effects.control_flow_allowed_effects):
    allowed.add_type(TapEffect)

tap_p = Primitive("tensortap_tap")
tap_p.multiple_results = True
feed_p = Primitive("tensortap_feed")


def _tap_shape(operand: Any, **_: Any) -> tuple[list[Any], set[Any]]:
    return [], {TAP_EFFECT}


def _feed_shape(*, aval: Any, **_: Any) -> Any:
    return aval


tap_p.def_effectful_abstract_eval(_tap_shape)
feed_p.def_abstract_eval(_feed_shape)


def _is_on_one_device(ctx: Any) -> bool:
    """Whether our own functions can be called: XLA does not know how to spread them over several devices."""
    context = ctx.module_context.axis_context
    return isinstance(context, sharding_impls.ShardingContext) and context.num_devices == 1


def _is_spread(ctx: Any) -> bool:
    """Whether XLA spreads the program over several devices."""
    context = ctx.module_context.axis_context
    return isinstance(context, sharding_impls.ShardingContext) and context.num_devices > 1


def _tap(ctx: Any, operand: Any, *, number: int, kind: int, native: bool, bounds: Bounds | None) -> Any:
    if not native or not _is_on_one_device(ctx):
        # Over several devices XLA places nothing that has side effects but JAX's own callbacks, which it knows by name.
        report = portable.reporter(number, kind, on_host=native, in_parts=_is_spread(ctx))
        return mlir.lower_fun(lambda x: report(x) or (), multiple_results=True)(ctx, operand)
    rule = jax.ffi.ffi_lowering("tensortap_tap", has_side_effect=True)
    within = {} if bounds is None else {"least": np.float64(bounds.least), "most": np.float64(bounds.most)}
    rule(ctx, operand, number=np.int64(number), kind=np.int64(kind), **within)
    return ()


def _feed(ctx: Any, *, number: int, aval: Any, native: bool) -> Any:
    if not native or not _is_on_one_device(ctx):
        return mlir.lower_fun(lambda: portable.fed(number, aval), multiple_results=False)(ctx)
    return jax.ffi.ffi_lowering("tensortap_feed", has_side_effect=True)(ctx, number=np.int64(number))


mlir.register_lowering(tap_p, _tap)
mlir.register_lowering(feed_p, _feed)


def bad_kinds(*arrays: Any) -> Any:
    """Which kinds of bad values each of these has, as one byte each: the native form."""
    call = jax.ffi.ffi_call("tensortap_bad", jax.ShapeDtypeStruct((len(arrays),), np.uint8))
    return call(*arrays)


def new_tap(var: Any, number: int, kind: int, native: bool, beside: Any, bounds: Bounds | None = None) -> Any:
    """The equation of a tap, in the circumstances of another equation."""
    parameters = {"number": number, "kind": kind, "native": native, "bounds": bounds}
    return core.new_jaxpr_eqn([var], [], tap_p, parameters, {TAP_EFFECT}, beside.source_info, beside.ctx)


def new_feed(var: Any, number: int, native: bool, beside: Any) -> Any:
    """The equation of a feed, which makes `var`."""
    parameters = {"number": number, "aval": var.aval, "native": native}
    return core.new_jaxpr_eqn([], [var], feed_p, parameters, set(), beside.source_info, beside.ctx)
