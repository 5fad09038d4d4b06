"""ATen's operations, and those of `torch.distributed`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tensortap.analyze.vocabulary.base import Vocabulary

__all__ = ["TORCH"]


class _Aten(Vocabulary):
    """ATen ends the names of operations in place with an underscore, and begins those of internal ones with it."""

    def plain(self, op_type: str) -> str:
        """An op type without namespace, underscores and `foreach`.

        >>> TORCH.plain("aten::_softmax"), TORCH.plain("aten::add_"), TORCH.plain("aten::_foreach_div_")
        ('softmax', 'add', 'div')
        """
        return op_type.rpartition("::")[2].strip("_").lower().removeprefix("foreach_")

    def is_in_place(self, op_type: str) -> bool:
        """Whether the name says that an operation writes into its first inputs."""
        return "::" in op_type and op_type.endswith("_")

    def is_over_lists(self, op_type: str) -> bool:
        """Whether the name says that an operation works on lists, as those of fast optimizers do."""
        return op_type.rpartition("::")[2].startswith(("_foreach_", "_fused_"))

    def fills_an_argument(self, attributes: Mapping[str, Any]) -> bool:
        """Whether a call was given an `out` to put its result into."""
        return str(attributes.get("overload", "")).endswith("out")


_ALIASES = {
    "addbmm": "addmm",
    "addmv": "addmm",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arctanh": "atanh",
    "baddbmm": "addmm",
    "bmm": "mm",
    "concatenate": "cat",
    "conv2d": "convolution",
    "convert_element_type": "to_copy",
    "convolution_overrideable": "convolution",
    "cudnn_convolution": "convolution",
    "divide": "div",
    "dot": "mm",
    "linear": "addmm",
    "matmul": "mm",
    "mkldnn_convolution": "convolution",
    "multiply": "mul",
    "mv": "mm",
    "safe_softmax": "softmax",
    "square": "pow",
    "subtract": "sub",
    "true_divide": "div",
}

_CANONICAL = {
    "amp_foreach_non_finite_check_and_unscale": "unscale",
    "cdist_backward": "distance_backward",
    "cdist_forward": "distance",
    "cholesky_inverse": "cholesky",
    "cholesky_solve": "cholesky",
    "cudnn_batch_norm": "batch_norm",
    "eig": "eigenvalues",
    "eigh": "eigenvalues",
    "embedding_dense_backward": "embedding_backward",
    "fused_adamw": "fused_adam",
    "fused_rms_norm": "rms_norm",
    "linalg_cholesky_ex": "cholesky",
    "linalg_eig": "eigenvalues",
    "linalg_eigh": "eigenvalues",
    "linalg_inv_ex": "inverse",
    "linalg_ldl_solve": "solve",
    "linalg_lu_factor_ex": "lu",
    "linalg_lu_solve": "solve",
    "linalg_slogdet": "logdet",
    "linalg_solve_ex": "solve",
    "linalg_solve_triangular": "solve",
    "linalg_svd": "singular_values",
    "linalg_vector_norm": "norm",
    "local_scalar_dense": "item",
    "lu_solve": "solve",
    "miopen_batch_norm": "batch_norm",
    "native_batch_norm": "batch_norm",
    "native_group_norm": "group_norm",
    "native_layer_norm": "layer_norm",
    "nll_loss2d_forward": "picked_loss",
    "nll_loss_forward": "nll_loss",
    "scaled_dot_product_attention": "attention",
    "scaled_dot_product_attention_math": "attention",
    "scaled_dot_product_efficient_attention": "attention",
    "scaled_dot_product_flash_attention": "attention",
    "scaled_dot_product_flash_attention_for_cpu": "attention",
    "svd": "singular_values",
    "symeig": "eigenvalues",
    "triangular_solve": "solve",
    "weight_norm_interface": "weight_norm",
}

_INPUTS = {
    "log": {"log_of": 0},
    "log1p": {"log_of": 0},
    "log2": {"log_of": 0},
    "log10": {"log_of": 0},
    "xlogy": {"log_of": 1},
    "div": {"dividend": 0, "divisor": 1},
    "floor_divide": {"dividend": 0, "divisor": 1},
    "remainder": {"dividend": 0, "divisor": 1},
    "fmod": {"dividend": 0, "divisor": 1},
    "addcdiv": {"dividend": 1, "divisor": 2},
    "reciprocal": {"divisor": 0},
    "pow": {"base": 0, "exponent": 1},
    "fused_adam": {"squares": 3},
    "batch_norm": {"variance": 4},
    "copy": {"cast": 1},
}

_OUTPUTS = {
    "rms_norm": {"scale": 1},
    "layer_norm": {"scale": 2},
    "group_norm": {"scale": 2},
    "batch_norm": {"scale": 2},
}

_NUMBERS = {
    "divisor": ("other", "scalar"),
    "term": ("other", "scalar"),
    "factor": ("alpha", "value", "other", "scalar"),
    "varying_factor": ("alpha", "value", "other", "scalar", "weight"),
    "scale": ("other", "alpha", "scalar"),
    "base": ("self",),
    "exponent": ("exponent",),
    "epsilon": ("eps",),
    "dimension": ("dim",),
    "fill": ("value", "fill_value", "s"),
    "list_length": ("self",),
    "learning_rate": ("lr",),
    "step": ("alpha",),
}

TORCH = _Aten(
    _ALIASES,
    _CANONICAL,
    _INPUTS,
    _NUMBERS,
    re.compile(
        r"(c10d|_c10d_functional|c10d_functional)::|allreduce|all_gather|reduce_scatter", re.IGNORECASE
    ),
    _OUTPUTS,
    hidden_writes={"batch_norm": (3, 4)},
    control_inputs_write=True,
    api={
        "epsilon": "eps",
        "lowest": "torch.finfo(dtype).min",
        "pseudo_inverse": "torch.linalg.pinv or lstsq",
        "where": "torch.where",
        "zeros": "torch.zeros",
    },
    modules=frozenset(["torch", "F"]),
)
