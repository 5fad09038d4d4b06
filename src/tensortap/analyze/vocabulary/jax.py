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
    "dot": "mm",
    "dot_general": "mm",
    "dynamic_slice": "slice",
    "getitem": "select",
    "integer_pow": "pow",
    "log_1p": "log1p",
    "reduce_sum": "sum",
    "select_n": "where",
    "square": "pow",
    "stop_gradient": "detach",
    "strided_slice": "slice",
}

_INPUTS = {
    "log": {"log_of": 0},
    "log1p": {"log_of": 0},
    "div": {"dividend": 0, "divisor": 1},
    "pow": {"base": 0, "exponent": 1},
}

JAX = Vocabulary(
    _ALIASES,
    {},
    _INPUTS,
    {"exponent": ("y",), "dimension": ("axis",)},
    re.compile("psum|all_gather|reduce_scatter|ppermute|all_to_all"),
    api={
        "lowest": "jnp.finfo(dtype).min",
        "pseudo_inverse": "jnp.linalg.pinv",
        "where": "jnp.where",
        "zeros": "jnp.zeros",
    },
    modules=frozenset(["jnp", "lax", "jax"]),
)
