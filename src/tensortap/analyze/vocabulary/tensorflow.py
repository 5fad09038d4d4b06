"""TensorFlow's operations, as its graphs, its runtime and its optimizer name them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tensortap.analyze.vocabulary.base import Vocabulary

__all__ = ["TENSORFLOW"]

_KERNEL = re.compile(r"^_(?:Mkl|MklNative|XlaAsync)?(?=[A-Z])")
"""Before the names of ops that only the runtime puts into graphs: `_MklSoftmax`, `_FusedMatMul`."""
_RESOURCE = re.compile(r"^(?:Resource)?(?:Sparse)?(?=Apply)|^Resource(?=Scatter)|^Ref(?=[A-Z])")
"""Before ops that do the same to another kind of variable."""
_VERSION = re.compile(r"v\d+$")
_IN_PLACE = re.compile(
    r"^(?:Assign(?:Add|Sub)?|(?:Sparse)?Apply[A-Z]\w*|Scatter(?:Nd)?(?:Update|Add|Sub|Mul|Div|Min|Max))$"
)
"""Ops on the variables of TensorFlow 1: they return the variable that they have changed."""


class _TensorFlow(Vocabulary):
    """Op types in camel case, with a version behind and the way they are executed before them."""

    def plain(self, op_type: str) -> str:
        """An op type in small letters, without version and the way it is executed.

        >>> [TENSORFLOW.plain(each) for each in ("_MklSoftmax", "AddV2", "ResourceApplyAdam", "ApplyAdagradV2")]
        ['softmax', 'add', 'applyadam', 'applyadagradv2']
        """
        name = _RESOURCE.sub("", _KERNEL.sub("", op_type)).lower()
        return name if name in self.aliases or name in self.canonical else _VERSION.sub("", name)

    def steps(self, op_type: str, attributes: Mapping[str, Any]) -> Sequence[str]:
        """The functions of one tensor that the runtime executes in one."""
        steps = attributes.get("op_names") if op_type == "_UnaryOpsComposition" else None
        return steps if isinstance(steps, list) else ()

    def is_in_place(self, op_type: str) -> bool:
        """Whether the name says that an operation changes the variable that it is given first."""
        return _IN_PLACE.match(op_type) is not None


_SAME = {
    "add": "addn biasadd",
    "alias": """
        identity ensureshape preventgradient checknumerics snapshot enter exit switch send hostsend
        deepcopy
    """,
    "cat": "concat",
    "clamp": "clipbyvalue",
    "convolution": "conv conv2d conv3d depthwiseconv2dnative fusedconv2d fusedconv3d fuseddepthwiseconv2dnative",
    "detach": "stopgradient",
    "div": "realdiv truncatediv xdivy",
    "eq": "equal approximateequal",
    "erfinv": "ndtri",
    "expand": "broadcastto tile",
    "floor_divide": "floordiv",
    "ge": "greaterequal",
    "gt": "greater",
    "le": "lessequal",
    "lt": "less",
    "mm": "matmul batchmatmul sparsematmul sparsetensordensematmul",
    "mul": "mulnonan",
    "next_iteration": "nextiteration",
    "ne": "notequal",
    "pad": "mirrorpad",
    "pow": "square",
    "reciprocal": "inv",
    "remainder": "mod floormod truncatemod",
    "slice": "stridedslice",
    "split_with_sizes": "splitv",
    "stack": "pack",
    "to_copy": "cast",
    "unbind": "unpack",
    "unsqueeze": "expanddims",
    "where": "select",
}
"""Names that mean the same, by the one they go by in sentences."""

_ALIASES = {name: word for word, same in _SAME.items() for name in same.split()} | {
    "gathernd": "gather",
    "logsoftmax": "log_softmax",
    "oneslike": "ones_like",
    "zeroslike": "zeros_like",
    "softmaxcrossentropywithlogits": "cross_entropy",
    "sparsesoftmaxcrossentropywithlogits": "cross_entropy",
}

_CANONICAL = {
    "applyadadelta": "adadelta",
    "applyadagrad": "adagrad",
    "applyadagradda": "adagrad_da",
    "applyadagradv2": "adagrad_v2",
    "applyadam": "fused_adam",
    "applyadamax": "adamax",
    "applyaddsign": "sign_update",
    "applycenteredrmsprop": "centered_rmsprop",
    "applyftrl": "ftrl",
    "applyftrlv2": "ftrl",
    "applygradientdescent": "sgd",
    "applykerasmomentum": "momentum",
    "applymomentum": "momentum",
    "applypowersign": "sign_update",
    "applyproximaladagrad": "adagrad",
    "applyproximalgradientdescent": "proximal_sgd",
    "applyrmsprop": "rmsprop",
    "assign": "copy",
    "assignaddvariableop": "assign_add",
    "assignsubvariableop": "assign_sub",
    "assignvariableop": "assign",
    "choleskysolve": "solve",
    "conv2dbackpropfilter": "convolution_backward",
    "conv2dbackpropinput": "convolution_backward",
    "conv3dbackpropfilter": "convolution_backward",
    "conv3dbackpropinput": "convolution_backward",
    "ctcloss": "ctc_loss",
    "depthwiseconv2dnativebackpropfilter": "convolution_backward",
    "depthwiseconv2dnativebackpropinput": "convolution_backward",
    "eig": "eigenvalues",
    "euclideannorm": "norm",
    "fill": "full",
    "fusedbatchnorm": "batch_norm",
    "fusedbatchnormex": "batch_norm",
    "fusedbatchnormgrad": "batch_norm_backward",
    "fusedmatmul": "addmm",
    "invgrad": "reciprocal_backward",
    "l2loss": "mse_loss",
    "layernorm": "layer_norm",
    "linspace": "arange",
    "logmatrixdeterminant": "logdet",
    "matrixbandpart": "triu",
    "matrixinverse": "inverse",
    "matrixsolve": "solve",
    "matrixtriangularsolve": "solve",
    "multinomial": "randint",
    "parameterizedtruncatednormal": "randn",
    "randomstandardnormal": "randn",
    "randomuniform": "rand",
    "randomuniformint": "randint",
    "randomshuffle": "shuffle",
    "range": "arange",
    "rank": "size",
    "reciprocalgrad": "reciprocal_backward",
    "rsqrtgrad": "rsqrt_backward",
    "scatteradd": "index_add",
    "scatternd": "index_add",
    "segmentmean": "segment_reduce",
    "segmentsum": "index_add",
    "selfadjointeig": "eigenvalues",
    "shapen": "shape",
    "split": "split_along",  # which it is given first
    "sqrtgrad": "sqrt_backward",
    "squareddifference": "squared_difference",
    "stackpop": "pop",
    "stackpush": "push",
    "statelessmultinomial": "randint",
    "statelessrandomnormal": "randn",
    "statelessrandomuniform": "rand",
    "statelessrandomuniformint": "randint",
    "statelesstruncatednormal": "randn",
    "svd": "singular_values",
    "tensorarrayconcat": "pop",
    "tensorarraygather": "pop",
    "tensorarrayread": "pop",
    "tensorarrayscatter": "push_at",
    "tensorarraywrite": "push_at",
    "tensorlistconcat": "pop",
    "tensorlistfromtensor": "list_of",
    "tensorlistgather": "pop",
    "tensorlistgetitem": "pop",
    "tensorlistpopback": "pop",
    "tensorlistpushback": "push",
    "tensorlistsetitem": "push_at",
    "tensorliststack": "pop",
    "tensorscatteradd": "index_add",
    "truncatednormal": "randn",
    "unsortedsegmentsum": "index_add",
}

_INPUTS = {
    "adadelta": {"variable": 0, "squares": 1, "rate": 3, "epsilon": 5, "gradient": 6},
    "adagrad": {"variable": 0, "squares": 1, "rate": 2, "gradient": 3},
    "adagrad_da": {"variable": 0, "squares": 2, "gradient": 3, "rate": 4},
    "adagrad_v2": {"variable": 0, "squares": 1, "rate": 2, "epsilon": 3, "gradient": 4},
    "adamax": {"variable": 0, "squares": 2, "rate": 4, "epsilon": 7, "gradient": 8},
    "assign_add": {"variable": 0, "step": 1},
    "assign_sub": {"variable": 0, "step": 1},
    "batch_norm": {"variance": 4},
    "centered_rmsprop": {"variable": 0, "squares": 2, "rate": 4, "epsilon": 7, "gradient": 8},
    "copy": {"cast": 1},
    "div": {"dividend": 0, "divisor": 1},
    "floor_divide": {"dividend": 0, "divisor": 1},
    "ftrl": {"variable": 0, "squares": 1, "gradient": 3, "rate": 4},
    "fused_adam": {"variable": 0, "squares": 2, "rate": 5, "epsilon": 8, "gradient": 9},
    "log": {"log_of": 0},
    "log1p": {"log_of": 0},
    "momentum": {"variable": 0, "rate": 2, "gradient": 3},
    "pow": {"base": 0, "exponent": 1},
    "proximal_sgd": {"variable": 0, "rate": 1, "gradient": 4},
    "list_of": {"pushed": 0},
    "push": {"pushed": 1},
    "push_at": {"pushed": 2},
    "reciprocal": {"divisor": 0},
    "reciprocal_backward": {"arriving": 1},
    "remainder": {"dividend": 0, "divisor": 1},
    "rmsprop": {"variable": 0, "squares": 1, "rate": 3, "epsilon": 6, "gradient": 7},
    "rsqrt_backward": {"arriving": 1},
    "sgd": {"variable": 0, "rate": 1, "gradient": 2},
    "sign_update": {"variable": 0, "rate": 2, "gradient": 6},
    "sqrt_backward": {"arriving": 1},
    "xlogy": {"log_of": 1},
}

TENSORFLOW = _TensorFlow(
    _ALIASES,
    _CANONICAL,
    _INPUTS,
    {"epsilon": ("epsilon",)},
    re.compile("allreduce|collective|allgather|reducescatter|alltoall", re.IGNORECASE),
    constants={
        "logsoftmax": {"dimension": -1},
        "softmax": {"dimension": -1},
        "square": {"exponent": 2},
    },
    api={"lowest": "dtype.min", "pseudo_inverse": "tf.linalg.pinv", "where": "tf.where", "zeros": "tf.zeros"},
    modules=frozenset(["tf"]),
)
