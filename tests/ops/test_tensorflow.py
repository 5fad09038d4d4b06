"""The same numbers as TensorFlow's own debug ops, on the dtypes those know (D18)."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys

import numpy as np
import pytest

from tensortap.ops import DebugNanCount, DebugNumericSummary, TensorView

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

# TensorFlow runs in a process of its own: its threads and PyTorch's do not share one well.
PROGRAM = """
import io, sys
import numpy as np
import tensorflow as tf

cases = np.load(io.BytesIO(sys.stdin.buffer.read()))
answers = {}
for name in cases.files:
    lower, upper = map(float, name.split("|")[1:])
    with tf.device("/cpu:0"):
        tensor = tf.constant(cases[name])
        answers[name + "|summary"] = tf.raw_ops.DebugNumericSummary(
            input=tensor, tensor_name="watched:0", lower_bound=lower, upper_bound=upper).numpy()
        if tensor.dtype != tf.bool:  # it has no kernel
            answers[name + "|nans"] = tf.raw_ops.DebugNanCount(input=tensor, tensor_name="watched:0").numpy()
buffer = io.BytesIO()
np.savez(buffer, **answers)
sys.stdout.buffer.write(buffer.getvalue())
"""

BOUNDS = [(-np.inf, np.inf), (-2.0, 2.0), (0.0, np.inf), (-np.inf, 0.5), (1.0, -1.0), (0.1, np.inf)]


def cases():
    rng = np.random.default_rng(5)
    floats = rng.standard_normal((7, 3, 5)) * 2
    floats[0, 0] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    arrays = {
        "bool": rng.integers(0, 2, (4, 3)).astype(bool),
        "empty": np.zeros((2, 0), np.float32),
        "scalar": np.array(-1.5, np.float32),
        "nan": np.full((3,), np.nan, np.float32),
        "inf": np.array([np.inf, -np.inf, np.inf], np.float64),
        "float32": floats.astype(np.float32),
        "float64": floats.astype(np.float32).astype(np.float64),
        "large": rng.standard_normal(9000).astype(np.float32),
    }
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        low = 0 if np.dtype(dtype).kind == "u" else -4
        arrays[np.dtype(dtype).name] = rng.integers(low, 5, (6, 2)).astype(dtype)
    for name, array in arrays.items():
        for lower, upper in BOUNDS:
            if name == "float64" and lower == 0.1:
                continue  # TensorFlow's bounds are float32, ours have the precision of the tensor
            yield f"{name}|{lower}|{upper}", array


@pytest.fixture(scope="module")
def answers():
    buffer = io.BytesIO()
    np.savez(buffer, **dict(cases()))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=buffer.getvalue(),
        capture_output=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr.decode()
    return dict(np.load(io.BytesIO(done.stdout)))


@pytest.mark.parametrize(("name", "array"), [pytest.param(*case, id=case[0]) for case in cases()])
def test_the_same_numbers(answers, name, array):
    """D13 to D16."""
    lower, upper = map(float, name.split("|")[1:])
    view = TensorView.of_numpy(array)
    found = DebugNumericSummary(lower_bound=lower, upper_bound=upper).apply(view)
    expected = answers[f"{name}|summary"]
    np.testing.assert_array_equal(np.delete(found, [10, 11]), np.delete(expected, [10, 11]))
    np.testing.assert_allclose(found[10:12], expected[10:12], rtol=1e-9, atol=1e-12)
    if array.dtype != bool:
        np.testing.assert_array_equal(DebugNanCount().apply(view), answers[f"{name}|nans"])
