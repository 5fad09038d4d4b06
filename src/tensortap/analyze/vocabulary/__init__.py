"""What the operations of each framework mean, so that rules need no names of any.

    canonical    operations as the analysis knows them
    base         what a vocabulary is
    torch, tensorflow, jax    one for each framework

A new framework is one more vocabulary, under the name by which its engine signs runs (`Circumstances.engine`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tensortap.analyze.vocabulary.base import Vocabulary
from tensortap.analyze.vocabulary.canonical import Operation
from tensortap.analyze.vocabulary.jax import JAX
from tensortap.analyze.vocabulary.tensorflow import TENSORFLOW
from tensortap.analyze.vocabulary.torch import TORCH

__all__ = ["VOCABULARIES", "operation_of", "vocabulary_of"]

VOCABULARIES: Mapping[str, Vocabulary] = {"torch": TORCH, "tensorflow": TENSORFLOW, "jax": JAX}
"""By the name of the engine."""


def operation_of(op_type: str, engine: str = "") -> Operation:
    """What an operation is.

    Args:
        op_type: as the engine names it.
        engine: whose name it is; empty if the run does not tell, as those of earlier versions and of other debuggers.

    >>> operation_of("aten::_softmax").name, operation_of("aten::native_layer_norm").name, operation_of("RealDiv").name
    ('softmax', 'layer_norm', 'div')
    """
    return vocabulary_of(op_type, engine).operation(op_type)


def vocabulary_of(op_type: str, engine: str = "") -> Vocabulary:
    """Where to look an operation up: by its spelling, if the engine is not told or not known."""
    if engine in VOCABULARIES:
        return VOCABULARIES[engine]
    if "::" in op_type:
        return TORCH
    return TENSORFLOW if op_type.lstrip("_")[:1].isupper() else JAX
