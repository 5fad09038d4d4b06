"""What the analysis knows of operations, by their plain names: those of ATen, TensorFlow and JAX alike."""

from __future__ import annotations

import functools
import re

from tensortap.places import SOURCES
from tensortap.records import Node

__all__ = [
    "CASTS",
    "CHECKS",
    "COMMUNICATION",
    "COMPARISONS",
    "GARBAGE",
    "MASK_MAKERS",
    "PARTIAL_VIEWS",
    "SIGN_CHANGERS",
    "SOURCES",
    "UNWRITTEN",
    "VALUE_FREE",
    "VIEWS",
    "WHOLE_VIEWS",
    "group_size",
    "is_in_place",
    "is_over_lists",
    "overwrites",
    "plain_name",
]

_ALIASES = {
    "true_divide": "div",
    "divide": "div",
    "realdiv": "div",
    "divnonan": "div",
    "floordiv": "floor_divide",
    "multiply": "mul",
    "subtract": "sub",
    "addv2": "add",
    "add_any": "add",
    "biasadd": "add",
    "log_1p": "log1p",
    "matmul": "mm",
    "bmm": "mm",
    "baddbmm": "addmm",
    "addbmm": "addmm",
    "batchmatmul": "mm",
    "batchmatmulv2": "mm",
    "dot_general": "mm",
    "dot": "mm",
    "mv": "mm",
    "addmv": "addmm",
    "linear": "addmm",
    "convolution_overrideable": "convolution",
    "mkldnn_convolution": "convolution",
    "cudnn_convolution": "convolution",
    "conv_general_dilated": "convolution",
    "conv2d": "convolution",
    "safe_softmax": "softmax",
    "logsoftmax": "log_softmax",
    "integer_pow": "pow",
    "reduce_sum": "sum",
    "square": "pow",
    "select": "select",
    "selectv2": "where",
    "select_n": "where",
    "arccos": "acos",
    "arcsin": "asin",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "cast": "to_copy",
    "convert_element_type": "to_copy",
    "prims::convert_element_type": "to_copy",
    "inv": "reciprocal",
    "concatv2": "cat",
    "concatenate": "cat",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@functools.cache
def plain_name(op_type: str) -> str:
    """The name of an operation without namespace, underscores and spelling of its framework.

    >>> plain_name("aten::_softmax"), plain_name("aten::add_"), plain_name("aten::_foreach_div_"), plain_name("RealDiv")
    ('softmax', 'add', 'div', 'div')
    """
    name = op_type.rpartition("::")[2].strip("_").lower().removeprefix("foreach_")
    return _ALIASES.get(name, name)


def is_in_place(op_type: str) -> bool:
    """Whether an operation writes into its first inputs: ATen says so with an underscore at the end."""
    return "::" in op_type and op_type.endswith("_")


def is_over_lists(op_type: str) -> bool:
    """Whether an operation works on lists of tensors in parallel, as those of fast optimizers do."""
    return op_type.rpartition("::")[2].startswith(("_foreach_", "_fused_"))


def group_size(node: Node) -> int:
    """How many tensors one list of such an operation holds."""
    size = node.attributes.get("self")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    return max(len(node.outputs), 1)


WHOLE_VIEWS = _names(
    """
    view _unsafe_view unsafe_view reshape reshape_alias t transpose permute expand unsqueeze squeeze detach
    alias view_as flatten unflatten movedim swapaxes conj lift_fresh contiguous view_as_real view_as_complex
    ravel identity stopgradient broadcast_in_dim broadcast_to expanddims wait_tensor accumulategrad
    """
)
"""Operations whose output holds all elements of their first input, and no others."""

PARTIAL_VIEWS = _names(
    """
    slice select split split_with_sizes chunk unbind narrow as_strided diagonal unfold real imag
    index_select strided_slice stridedslice tensor_split unsafe_split unsafe_chunk unsafe_split_with_sizes
    getitem dynamic_slice gather gatherv2
    """
)
"""Operations whose output holds some of the elements of their first input."""

VIEWS = WHOLE_VIEWS | PARTIAL_VIEWS

GARBAGE = _names(
    """
    empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided resize
    resize_as set
    """
)
"""Operations whose output is memory as it was found: what it holds means nothing."""

UNWRITTEN = GARBAGE - _names("set resize resize_as")
"""Those of them that made the memory."""

VALUE_FREE = GARBAGE | _names(
    """
    zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full zeros ones
    full arange eye rand randn randint randperm shape size sym_size numel is_same_size zeroslike oneslike
    shape_as_tensor scalar_tensor bernoulli_like stop_gradient
    """
)
"""Operations whose output does not depend on the values of their inputs, at most on their shapes."""

_OVERWRITERS = _names(
    """
    copy fill zero normal uniform random bernoulli exponential cauchy geometric log_normal trunc_normal set
    resize
    """
)


def overwrites(op_type: str) -> bool:
    """Whether an operation in place forgets what its first input held."""
    return is_in_place(op_type) and plain_name(op_type) in _OVERWRITERS


MASK_MAKERS = _names(
    """
    full full_like new_full fill scalar_tensor masked_fill where masked_scatter index_fill index_put
    constant_pad_nd pad padv2 triu tril copy scatter fill_diagonal slice_scatter select_scatter
    """
)
"""Operations that put constants into tensors: an infinity they make of finite inputs is meant."""

SIGN_CHANGERS = _names("neg mul div sub rsub abs reciprocal pow sign")
"""Operations that can make +inf of −inf."""

CASTS = _names("to_copy to copy type_as to_dtype")

CHECKS = _names("eq ne isnan isinf isfinite isposinf isneginf")
"""Operations with which programs look whether a value is bad."""

COMPARISONS = _names("lt le gt ge")

COMMUNICATION = re.compile(
    r"(c10d|_c10d_functional|c10d_functional)::|allreduce|all_gather|reduce_scatter|psum", re.IGNORECASE
)
"""Operations whose outputs come from other ranks."""
