"""Summaries made on the device, forced on the CPU, against the kernel; and that they cost one copy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from tensortap.ops import kernel
from tests.ops.arrays import arrays, bounds
from tests.ops.reference import assert_summary

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tensortap.engines.torch import reduce  # noqa: E402
from tensortap.engines.torch.reduce import DeviceSummaries  # noqa: E402
from tensortap.ops.dtypes import in_precision_of  # noqa: E402

DTYPES = tuple(name for name in (*sorted(reduce._REDUCIBLE), "complex64", "complex128") if name != "float64")


def as_tensor(array):
    """The same elements and strides, copied."""
    bits = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}.get(array.itemsize)
    dtype = getattr(torch, array.dtype.name)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.kind == "c":
        return torch.from_numpy(contiguous.copy())
    return torch.from_numpy(contiguous.view(bits).copy()).view(dtype)


@settings(max_examples=300, deadline=None)
@given(array=arrays(DTYPES), lower=bounds, upper=bounds)
def test_the_same_numbers_as_the_kernel(array, lower, upper):
    name = array.dtype.name
    summaries = DeviceSummaries(lower, upper)
    summaries.add(as_tensor(array))
    (found,) = summaries.collect_rows()
    expected = kernel.summary(array, in_precision_of(name, lower), in_precision_of(name, upper))
    if array.dtype.kind == "c":
        # PyTorch rounds magnitudes in its own way.
        np.testing.assert_allclose(found[8:10], expected[8:10], rtol=1e-14)
        found[8:10] = expected[8:10]
        if max(abs(expected[8]), abs(expected[9])) > 1e150:
            found[11] = expected[11]
    assert_summary(found, expected, rtol=1e-10)


def test_float64():
    values = np.random.default_rng(0).standard_normal((30, 40)) + 1e9
    values[0, :4] = [np.nan, np.inf, -np.inf, 0]
    summaries = DeviceSummaries()
    summaries.add(torch.from_numpy(values).T)
    assert_summary(summaries.collect_rows()[0], kernel.summary(values.T), rtol=1e-11)


def test_many_tensors_keep_their_order_and_collect_starts_over():
    summaries = DeviceSummaries()
    tensors = [torch.full((i,), float(i)) for i in range(5)]
    assert [summaries.add(each) for each in tensors] == [0, 1, 2, 3, 4]
    assert len(summaries) == 5
    table = summaries.collect()
    assert table.shape == (5, 14)
    assert table[:, 1].tolist() == [0, 1, 2, 3, 4]
    assert table[1:, 10].tolist() == [1, 2, 3, 4]
    assert math.isnan(table[0, 10])
    assert len(summaries) == 0
    assert summaries.collect().shape == (0, 14)


def test_large_tensors_are_reduced_in_chunks(monkeypatch):
    monkeypatch.setattr(reduce, "_CHUNK", 100)
    values = np.random.default_rng(0).standard_normal(1234).astype(np.float32)
    values[100:200] = np.nan
    values[250] = np.inf
    summaries = DeviceSummaries(-1.0, 1.0)
    summaries.add(torch.from_numpy(values))
    assert_summary(summaries.collect_rows()[0], kernel.summary(values, -1.0, 1.0))


class Recorder(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def test_nothing_waits_before_the_one_copy_of_collect(monkeypatch):
    copies = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(self.shape) or cpu(self))
    summaries = DeviceSummaries()
    with Recorder() as recorder:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool):
            summaries.add(torch.ones(3, 4).to(dtype))
    # These make the host wait for the device.
    waiting = [
        op
        for op in recorder.ops
        if any(word in op for word in ("_local_scalar", "item", "nonzero", "equal.default"))
    ]
    assert waiting == []
    assert copies == []
    summaries.collect()
    assert copies == [(5, 11)]


def test_inside_a_dispatch_handler_with_autograd_and_random_numbers():
    """As an interceptor calls it: the program's values, gradients and random numbers stay what they were."""

    class Tap(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.summaries = DeviceSummaries()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.summaries.add(result)
            return result

    def step():
        torch.manual_seed(3)
        weight = torch.randn(4, 4, requires_grad=True)
        loss = torch.nn.functional.dropout(weight @ weight, 0.5).square().sum()
        loss.backward()
        return loss.detach(), weight.grad, torch.rand(3)

    expected = step()
    with Tap() as tap:
        found = step()
    table = tap.summaries.collect()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(table) > 5
    assert (table[:, 0] == 1).all()


def test_a_tensor_that_requires_grad_and_one_made_in_inference_mode():
    summaries = DeviceSummaries()
    summaries.add(torch.ones(2, requires_grad=True) * 2)
    with torch.inference_mode():
        summaries.add(torch.ones(3))
    assert summaries.collect()[:, 10].tolist() == [2, 1]


def test_later_changes_in_place_do_not_matter():
    tensor = torch.ones(4)
    summaries = DeviceSummaries()
    summaries.add(tensor)
    tensor.zero_()
    assert summaries.collect()[0, 10] == 1


def test_unusual_tensors_have_an_answer():
    summaries = DeviceSummaries()
    released = torch.ones(3)
    released.untyped_storage().resize_(0)
    sparse = torch.eye(3).to_sparse()
    expanded = torch.tensor([[1.0], [float("nan")]]).expand(2, 1 << 40)
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for tensor in (released, sparse, expanded, packed):
        summaries.add(tensor)
    rows = summaries.collect_rows()
    assert rows[0][:8].tolist() == [0] * 8
    assert rows[0][12:].tolist() == [1, 1, 3]
    assert rows[1][:8].tolist() == [1, 9, 0, 0, 0, 6, 3, 0]
    assert rows[2][1:8].tolist() == [2.0**41, 2.0**40, 0, 0, 0, 2.0**40, 0]
    assert rows[3][[0, 1, 12]].tolist() == [1, 4, -1]
