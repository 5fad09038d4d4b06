"""TensorFlow in tests: imported by those that need it, and by nobody else."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

__all__ = ["import_tensorflow"]


def import_tensorflow() -> Any:
    """The module, or a skipped test."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, while it is being imported
        tf = pytest.importorskip("tensorflow")
        import keras  # noqa: F401  (loaded by tensorflow when it is first used)
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    return tf
