"""Tensors by address."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings

from tensortap.ops import TensorView
from tests.ops.arrays import arrays


class Owner:
    """Holds memory as a framework's tensor does."""

    def __init__(self, array):
        self.array = array


@settings(max_examples=200, deadline=None)
@given(arrays())
def test_a_view_by_address_is_the_array(array):
    seen = TensorView.of_numpy(array)
    view = TensorView(seen.address, seen.dtype, seen.shape, seen.strides, Owner(array))
    shown = view.to_numpy()
    assert shown.dtype == array.dtype
    assert shown.shape == array.shape
    assert shown.tobytes() == array.tobytes()
    assert view.nbytes == array.nbytes


def test_the_array_shares_memory_and_keeps_the_owner():
    array = np.arange(4.0)
    owner = Owner(array)
    alive = weakref.ref(owner)
    shown = TensorView(array.ctypes.data, "float64", (4,), (1,), owner).to_numpy()
    array[0] = 7
    assert shown[0] == 7
    assert not shown.flags.writeable
    del owner
    gc.collect()
    assert alive() is not None
    del shown
    gc.collect()
    assert alive() is None


def test_foreign_byte_order_and_odd_strides_are_copied():
    swapped = np.arange(3, dtype=">f4")
    assert TensorView.of_numpy(swapped).to_numpy().tolist() == [0, 1, 2]
    records = np.zeros(3, [("byte", "u1"), ("value", "f8")])
    records["value"] = [1, 2, 3]
    view = TensorView.of_numpy(records["value"])
    assert view.strides == (1,)
    assert view.to_numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("view", [
    TensorView(0, "float32", (3,), (1,)), TensorView(64, "no_such_type", (3,), (1,)),
    TensorView(64, "float32", (3,), (1,), has_value=False),
])  # fmt: skip
def test_what_has_no_array(view):
    with pytest.raises(TypeError):
        view.to_numpy()
