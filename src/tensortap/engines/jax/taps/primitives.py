"""The equations that are added to a program: a tap, which returns nothing, and a feed, which returns a fed value."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import callback as jax_callback
from jax._src import config as jax_config
from jax._src import core, effects, sharding_impls
from jax._src.interpreters import mlir
from jax._src.lib import xla_client as xc
from jax.extend.core import Primitive

from tensortap.engines.jax.taps import portable

__all__ = ["PILL", "TAP_EFFECT", "VALUE", "bad_kinds", "feed_p", "tap_p"]

PILL, VALUE = 0, 1
"""What a tap takes of a tensor: its health, or a copy as well."""


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


def _tap(ctx: Any, operand: Any, *, number: int, kind: int, native: bool) -> Any:
    if not native:
        report = portable.reporter(number, kind)
        return mlir.lower_fun(lambda x: report(x) or (), multiple_results=True)(ctx, operand)
    rule = jax.ffi.ffi_lowering("tensortap_tap", has_side_effect=True)
    # As JAX does with callbacks: an operation with effects must be told where to happen.
    context = ctx.module_context.axis_context
    if isinstance(context, sharding_impls.SPMDAxisContext):
        everywhere: Any
        if jax_config.use_shardy_partitioner.value:
            everywhere = jax_callback._get_sdy_array_list_for_callbacks(ctx.avals_out)
        else:
            everywhere = xc.OpSharding()
            everywhere.type = xc.OpSharding.Type.MANUAL
        return _placed(ctx, rule, operand, number, kind, everywhere)
    if isinstance(context, sharding_impls.ShardingContext) and context.num_devices > 1:
        return _placed(ctx, rule, operand, number, kind, _on_first_device())
    rule(ctx, operand, number=np.int64(number), kind=np.int64(kind))
    return ()


def _on_first_device() -> Any:
    if jax_config.use_shardy_partitioner.value:
        place = sharding_impls.SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=(0,))
        return sharding_impls.SdyArrayList((place,))
    sharding = xc.OpSharding()
    sharding.type = xc.OpSharding.Type.MAXIMAL
    sharding.tile_assignment_dimensions = [1]
    sharding.tile_assignment_devices = [0]
    return sharding


def _placed(ctx: Any, rule: Any, operand: Any, number: int, kind: int, sharding: Any) -> Any:
    call = mlir.custom_call(
        "tensortap_tap",
        result_types=[],
        operands=[operand],
        has_side_effect=True,
        api_version=4,
        backend_config={
            "number": mlir.ir_attribute(np.int64(number)),
            "kind": mlir.ir_attribute(np.int64(kind)),
        },
        operand_layouts=[list(reversed(range(ctx.avals_in[0].ndim)))],
        result_layouts=[],
    )
    mlir.set_sharding(ctx.module_context, call, sharding)
    return ()


def _feed(ctx: Any, *, number: int, aval: Any, native: bool) -> Any:
    if not native:
        return mlir.lower_fun(lambda: portable.fed(number, aval), multiple_results=False)(ctx)
    return jax.ffi.ffi_lowering("tensortap_feed", has_side_effect=True)(ctx, number=np.int64(number))


mlir.register_lowering(tap_p, _tap)
mlir.register_lowering(feed_p, _feed)


def bad_kinds(*arrays: Any) -> Any:
    """Which kinds of bad values each of these has, as one byte each: the native form."""
    call = jax.ffi.ffi_call("tensortap_bad", jax.ShapeDtypeStruct((len(arrays),), np.uint8))
    return call(*arrays)


def new_tap(var: Any, number: int, kind: int, native: bool, source_info: Any) -> Any:
    """The equation of a tap."""
    parameters = {"number": number, "kind": kind, "native": native}
    return core.new_jaxpr_eqn([var], [], tap_p, parameters, {TAP_EFFECT}, source_info)


def new_feed(var: Any, number: int, native: bool, source_info: Any) -> Any:
    """The equation of a feed, which makes `var`."""
    parameters = {"number": number, "aval": var.aval, "native": native}
    return core.new_jaxpr_eqn([], [var], feed_p, parameters, set(), source_info)
