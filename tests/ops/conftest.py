"""Every kernel there is, under one signature."""

from __future__ import annotations

import pytest

from tensortap.ops import kernel, numpy_kernel
from tensortap.ops.view import TensorView


def kernels():
    loaded = kernel.native()
    return ["numpy"] if loaded is None else ["numpy", *loaded.isas()]


class Kernel:
    """One implementation: `summary(array or view, lower, upper)` and `nan_count(array or view)`."""

    def __init__(self, name):
        self.name = name

    def _call(self, function, fallback, tensor, *bounds):
        view = tensor if isinstance(tensor, TensorView) else TensorView.of_numpy(tensor)
        if self.name == "numpy":
            return fallback(view, *bounds)
        loaded = kernel.native()
        usual = loaded.isa()
        loaded.use_isa(self.name)
        try:
            return function(view, *bounds)
        finally:
            loaded.use_isa(usual)

    def summary(self, tensor, lower=float("-inf"), upper=float("inf")):
        return self._call(kernel.summary, numpy_kernel.summary, tensor, lower, upper)

    def nan_count(self, tensor):
        return self._call(kernel.nan_count, numpy_kernel.nan_count, tensor)


@pytest.fixture(params=kernels(), scope="session")
def any_kernel(request):
    return Kernel(request.param)
