"""The primitives of JAX."""

from __future__ import annotations

import re

from tensortap.analyze.vocabulary.base import Vocabulary

__all__ = ["JAX"]

_ALIASES = {
    "add_any": "add",
    "broadcast_in_dim": "expand",
    "broadcast_to": "expand",
    "concatenate": "cat",
    "conv_general_dilated": "convolution",
    "convert_element_type": "to_copy",
    "cumlogsumexp": "logsumexp",
    "dot": "mm",
    "dot_general": "mm",
    "dynamic_slice": "slice",
    "erf_inv": "erfinv",
    "getitem": "select",
    "integer_pow": "pow",
    "is_finite": "isfinite",
    "log_1p": "log1p",
    "logistic": "sigmoid",
    "reduce_max": "amax",
    "reduce_min": "amin",
    "reduce_prod": "prod",
    "reduce_sum": "sum",
    "rem": "remainder",
    "scatter-add": "scatter_add",
    "select_n": "where",
    "square": "pow",
    "stop_gradient": "detach",
    "strided_slice": "slice",
    "triangular_solve": "solve",
}

_CANONICAL = {
    "constant": "full",
    "copy_p": "alias",
    "dynamic_update_slice": "slice_scatter",
    "eig": "eigenvalues",
    "eigh": "eigenvalues",
    "expand_dims": "unsqueeze",
    "gather": "index",
    "iota": "arange",
    "layout_constraint": "alias",
    "loop_carry": "alias",
    "loop_slice": "select",
    "name": "alias",
    "optimization_barrier": "alias",
    "rev": "permute",
    "sharding_constraint": "alias",
    "svd": "singular_values",
}

_INPUTS = {
    "log": {"log_of": 0},
    "log1p": {"log_of": 0},
    "div": {"dividend": 0, "divisor": 1},
    "remainder": {"dividend": 0, "divisor": 1},
    "pow": {"base": 0, "exponent": 1},
}

# A number in the place of an operand is told by that place.
_NUMBERS = {
    "divisor": ("operand_1",),
    "term": ("operand_1", "operand_0"),
    "factor": ("operand_1", "operand_0"),
    "scale": ("operand_1", "operand_0"),
    "base": ("operand_0",),
    "exponent": ("y", "operand_1"),
    "dimension": ("axis",),
    "fill": ("operand_0",),
}

JAX = Vocabulary(
    _ALIASES,
    _CANONICAL,
    _INPUTS,
    _NUMBERS,
    re.compile("psum|all_gather|reduce_scatter|ppermute|all_to_all"),
    api={
        "double_where": "jnp.where(ok, f(jnp.where(ok, x, {safe})), 0.0)",
        "lowest": "jnp.finfo(dtype).min",
        "pseudo_inverse": "jnp.linalg.pinv",
        "where": "jnp.where",
        "zeros": "jnp.zeros",
    },
    modules=frozenset(["jnp", "lax", "jax"]),
)
