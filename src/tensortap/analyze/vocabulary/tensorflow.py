"""TensorFlow's operations, as far as the graphs of its debugger are analysed."""

from __future__ import annotations

import re

from tensortap.analyze.vocabulary.base import Vocabulary

__all__ = ["TENSORFLOW"]

_ALIASES = {
    "addv2": "add",
    "batchmatmul": "mm",
    "batchmatmulv2": "mm",
    "biasadd": "add",
    "broadcastto": "expand",
    "cast": "to_copy",
    "concatv2": "cat",
    "conv2d": "convolution",
    "divnonan": "div",
    "expanddims": "unsqueeze",
    "floordiv": "floor_divide",
    "gatherv2": "gather",
    "identity": "alias",
    "inv": "reciprocal",
    "logsoftmax": "log_softmax",
    "matmul": "mm",
    "oneslike": "ones_like",
    "padv2": "pad",
    "realdiv": "div",
    "selectv2": "where",
    "square": "pow",
    "stopgradient": "detach",
    "stridedslice": "slice",
    "zeroslike": "zeros_like",
}

_INPUTS = {
    "log": {"log_of": 0},
    "log1p": {"log_of": 0},
    "xlogy": {"log_of": 1},
    "div": {"dividend": 0, "divisor": 1},
    "floor_divide": {"dividend": 0, "divisor": 1},
    "reciprocal": {"divisor": 0},
    "pow": {"base": 0, "exponent": 1},
}

TENSORFLOW = Vocabulary(
    _ALIASES,
    {},
    _INPUTS,
    {"epsilon": ("epsilon",)},
    re.compile("allreduce|collective|allgather", re.IGNORECASE),
    api={"lowest": "dtype.min", "pseudo_inverse": "tf.linalg.pinv", "where": "tf.where", "zeros": "tf.zeros"},
    modules=frozenset(["tf"]),
)
