"""Arrays in a few numbers; what is bad about them is no reason for NumPy to warn the user."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

from tensortap.analyze.numbers import summarize


@pytest.mark.parametrize(
    "values",
    [
        np.array([complex(np.nan, np.inf), complex(1e308, 1.7e308)]),
        np.array([1e200, -1e300, np.nan]),
        np.array([np.inf, -np.inf], np.float16),
        np.array([np.nan, 3e38], ml_dtypes.bfloat16),
        np.array([0x7FA00000, 0], np.uint32).view(np.float32),  # a NaN that signals
    ],
)
def test_no_warning_is_given(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert summarize(values).elements == len(values)
