"""Every kernel against exact arithmetic: D14 to D16 for all dtypes, layouts and special values."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensortap.ops import TensorView
from tensortap.ops.dtypes import CODES, number_of
from tests.ops.arrays import ARRAY_DTYPES, arrays, bounds, random_array
from tests.ops.reference import assert_summary, summary_of

INF, NAN = math.inf, math.nan
many = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(array=arrays(), lower=bounds, upper=bounds)
def test_any_array_in_any_layout(any_kernel, array, lower, upper):
    assert_summary(any_kernel.summary(array, lower, upper), summary_of(array, lower, upper))


@many
@given(array=arrays())
def test_nan_counts(any_kernel, array):
    assert any_kernel.nan_count(array) == summary_of(array)[2]


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 2111, 2112, 2113, 8257])
def test_every_dtype_at_the_edges_of_blocks(any_kernel, dtype, size):
    array = random_array(dtype, size, seed=size)
    assert_summary(any_kernel.summary(array), summary_of(array))
    assert_summary(any_kernel.summary(array, -1.0, 1.0), summary_of(array, -1.0, 1.0))


@pytest.mark.parametrize(
    "dtype", [name for name in ARRAY_DTYPES if np.dtype(random_array(name, 1).dtype).itemsize == 1]
)
def test_every_byte_of_a_one_byte_type(any_kernel, dtype):
    array = np.arange(256, dtype=np.uint8).view(random_array(dtype, 1).dtype)
    if dtype in ("bool", "int1", "int2", "int4", "uint1", "uint2", "uint4") or dtype.startswith(
        ("float4", "float6")
    ):
        array = array[: 2 if dtype in ("bool", "int1", "uint1") else 4]
    assert_summary(any_kernel.summary(array), summary_of(array))


def test_every_float16_and_bfloat16(any_kernel):
    bits = np.arange(65536, dtype=np.uint16)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        array = bits.view(dtype)
        found = any_kernel.summary(array)
        with np.errstate(invalid="ignore"):  # signalling NaNs are among them
            wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        assert found[1:8].tolist() == [
            65536, np.isnan(wide).sum(), 1, (finite < 0).sum(), 2, (finite > 0).sum(), 1
        ]  # fmt: skip
        assert found[8:10].tolist() == [finite.min(), finite.max()]
        assert found[11] == pytest.approx(finite.var(), rel=1e-12)


def test_the_example_of_d15(any_kernel):
    array = np.array([-5, -2, 0, 1, 5, NAN], np.float32)
    expected = [1, 6, 1, 2, 0, 1, 1, 1, -5, 5, -0.2, 10.96, 1, 1, 6]
    np.testing.assert_allclose(any_kernel.summary(array, -2.0, 2.0), expected, rtol=1e-15)


def test_lower_bound_is_tested_first(any_kernel):
    """D15."""
    found = any_kernel.summary(np.array([0.0, 1.0, 2.0, INF, -INF]), 1.0, 0.0)
    assert found[2:8].tolist() == [0, 3, 0, 0, 0, 2]


@pytest.mark.parametrize("bound", [INF, -INF, NAN])
def test_a_bound_that_is_not_finite_is_none(any_kernel, bound):
    array = np.array([-INF, -1, 0, 1, INF])
    np.testing.assert_array_equal(any_kernel.summary(array, bound, bound), any_kernel.summary(array))


@pytest.mark.parametrize("bound", [0.1, 1e-46, 3e38, 1e39, -1e39, 16777217.0])
def test_a_bound_no_float32_can_hold_is_compared_exactly(any_kernel, bound):
    steps = [-INF, INF]
    with np.errstate(over="ignore"):
        near = np.float32(bound)
    array = np.array([near, *(np.nextafter(near, np.float32(s)) for s in steps), 0.0, -1.0], np.float32)
    for lower, upper in ((bound, INF), (-INF, bound)):
        assert_summary(any_kernel.summary(array, lower, upper), summary_of(array, lower, upper))


def test_empty_tensor(any_kernel):
    """D16: initialised, no elements, no statistics."""
    np.testing.assert_array_equal(
        any_kernel.summary(np.zeros((2, 0, 3), np.float32)),
        [1, 0, 0, 0, 0, 0, 0, 0, INF, -INF, NAN, NAN, 1, 3, 2, 0, 3],
    )
    assert any_kernel.nan_count(np.zeros((0,), np.float32)) == 0


@pytest.mark.parametrize("view", [
    TensorView(0, "float32", (2, 3), (3, 1)),
    TensorView(4096, "float32", (2, 3), (3, 1), has_value=False),
])  # fmt: skip
def test_uninitialised_tensor(any_kernel, view):
    """D16 and D13."""
    np.testing.assert_array_equal(
        any_kernel.summary(view), [0, 0, 0, 0, 0, 0, 0, 0, INF, -INF, NAN, NAN, 1, 2, 2, 3]
    )
    assert any_kernel.nan_count(view) == 0


def test_zero_dimensions(any_kernel):
    np.testing.assert_array_equal(
        any_kernel.summary(np.array(-3, np.int16)), [1, 1, 0, 0, 1, 0, 0, 0, -3, -3, -3, 0, 5, 0]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("size", [3, 5000])
def test_nothing_finite(any_kernel, dtype, value, size):
    array = np.full(size, value, dtype)
    assert_summary(any_kernel.summary(array), summary_of(array))


def test_a_finite_element_late_among_others(any_kernel):
    array = np.full(10_000, NAN, np.float32)
    array[7000:7003] = [-INF, 4.0, 6.0]
    found = any_kernel.summary(array)
    assert found[1:12].tolist() == [10_000, 9997, 1, 0, 0, 2, 0, 4, 6, 5, 1]


@pytest.mark.parametrize("position", [0, 5, 63, 64, 2111, 2112, 4999])
@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e30])
def test_one_special_value_anywhere(any_kernel, position, value):
    array = random_array("float32", 5000)
    array[position] = value
    assert_summary(any_kernel.summary(array, -1e20, 1e20), summary_of(array, -1e20, 1e20))


@pytest.mark.parametrize(
    ("dtype", "offset"), [("float32", 1e7), ("float64", 1e9), ("float64", 1e15), ("int64", 10**17)]
)
def test_a_large_offset_does_not_spoil_the_variance(any_kernel, dtype, offset):
    array = (np.random.default_rng(1).integers(-50, 50, 20_000) + int(offset)).astype(dtype)
    rtol = 1e-12 if dtype != "int64" else 1e-2  # float64 steps by 16 at 10**17
    assert_summary(any_kernel.summary(array), summary_of(array.astype(np.float64), dtype=dtype), rtol=rtol)


def test_an_outlier_in_front_does_not_spoil_the_variance(any_kernel):
    array = random_array("float64", 20_000)
    array[0] = 1e9
    assert_summary(any_kernel.summary(array), summary_of(array))


def test_a_constant_has_no_variance(any_kernel):
    for value in (0.1, 1e38, -3e-42):
        found = any_kernel.summary(np.full(10_000, value, np.float32))
        assert found[11] == 0
        assert found[8] == found[9] == found[10] == np.float32(value)


def test_values_whose_squares_overflow(any_kernel):
    array = np.array([1e308, 1.5e308, -1e308, 2e200, NAN, INF])
    assert_summary(any_kernel.summary(array), summary_of(array))
    small = np.array([1e153, 2e153, -1e153])
    assert_summary(any_kernel.summary(small), summary_of(small))
    long = np.resize(array, 20_000)
    assert_summary(any_kernel.summary(long), summary_of(long))


def test_the_extremes_of_64_bit_integers(any_kernel):
    for dtype in (np.int64, np.uint64):
        info = np.iinfo(dtype)
        array = np.array([info.min, info.max, 0, 1, info.max - 1], dtype)
        assert_summary(any_kernel.summary(array), summary_of(array))


def test_signed_zeros_and_denormals(any_kernel):
    array = np.array([-0.0, 0.0, 1e-45, -1e-45, 1e-38], np.float32)
    found = any_kernel.summary(array)
    assert found[4:7].tolist() == [1, 2, 2]
    for zeros in ([-0.0, 0.0], [0.0, -0.0], [-0.0]):
        extremes = any_kernel.summary(np.array(zeros, np.float32))[8:10]
        assert not np.signbit(extremes).any(), "one zero, whatever the order of elements"


def test_complex_numbers_by_magnitude(any_kernel):
    """X13: NaN if a part is, even beside an infinity; else infinite if a part is."""
    values = [3 + 4j, 0j, complex(NAN, 1), complex(INF, NAN), complex(-INF, 0), complex(0, -1)]
    for dtype, number in ((np.complex64, 8), (np.complex128, 18)):
        found = any_kernel.summary(np.array(values, dtype))
        assert found.tolist() == pytest.approx(
            [1, 6, 2, 0, 0, 1, 2, 1, 0, 5, 2, np.var([5, 0, 1]), number, 1, 6]
        )


@pytest.mark.parametrize(("dtype", "part"), [("complex32", np.float16), ("bcomplex32", ml_dtypes.bfloat16)])
def test_complex_numbers_of_16_bit_parts(any_kernel, dtype, part):
    parts = np.array([[3, 4], [NAN, 1], [INF, 0], [0, 0]], np.float32).astype(part)
    view = TensorView(parts.ctypes.data, dtype, (4,), (1,), parts)
    assert any_kernel.summary(view).tolist()[:12] == [1, 4, 1, 0, 0, 1, 1, 1, 0, 5, 2.5, 6.25]
    assert any_kernel.nan_count(view) == 1
    backwards = TensorView(parts.ctypes.data + 12, dtype, (4,), (-1,), parts)
    np.testing.assert_array_equal(any_kernel.summary(backwards), any_kernel.summary(view))


def test_misaligned_memory(any_kernel):
    for dtype in ("float32", "float64", "complex128", "int16"):
        array = random_array(dtype, 3000)
        memory = np.empty(array.nbytes + 1, np.uint8)
        memory[1:] = array.view(np.uint8)
        view = TensorView(memory.ctypes.data + 1, dtype, (3000,), (1,), memory)
        assert_summary(any_kernel.summary(view), summary_of(array))
        scalar = TensorView(memory.ctypes.data + 1, dtype, (), (), memory)
        assert_summary(any_kernel.summary(scalar), summary_of(array[0, ...]))


def test_a_huge_count_by_broadcasting(any_kernel):
    """Repeated elements are counted, not visited."""
    array = np.broadcast_to(np.array([1.0, -1.0, NAN, 0.0], np.float32), (2**30, 2**10, 4))
    found = any_kernel.summary(array)
    n = 2.0**40
    assert found[:12].tolist() == pytest.approx([1, 4 * n, n, 0, n, n, n, 0, -1, 1, 0, 2 / 3])
    assert any_kernel.nan_count(array) == 2**40


@given(st.integers(1, 400), st.integers(1, 400), st.sampled_from(["T", "slice", "both"]))
@settings(max_examples=30, deadline=None)
def test_larger_strided_matrices(any_kernel, rows, columns, how):
    matrix = random_array("float32", (rows, columns))
    strided = {"T": matrix.T, "slice": matrix[::2, ::-3], "both": matrix.T[1::3, ::2]}[how]
    found, expected = any_kernel.summary(strided), any_kernel.summary(strided.copy())
    assert_summary(found, expected, rtol=1e-11)


def test_numbers_of_the_dtype_enum():
    """D14, index 12; -1 for types the enum does not have."""
    known = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int64": 9, "bool": 10, "bfloat16": 14}
    assert {name: number_of(name) for name in known} == known
    assert number_of("float8_e3m4") == -1
    assert len(CODES) <= 48, "the native kernel has room for 48"


def test_flushed_denormals_of_the_program_do_not_change_the_counts(any_kernel):
    torch = pytest.importorskip("torch")
    array = np.array([1e-45, -1e-45, 0.0], np.float32)
    expected = any_kernel.summary(array)
    if any_kernel.name == "numpy":
        pytest.skip("NumPy computes as the thread is set")
    supported = torch.set_flush_denormal(True)
    try:
        found = any_kernel.summary(array)
        still_flushed = float(np.float32(1e-45) * np.float32(1)) == 0.0
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(found, expected)
    assert still_flushed or not supported, "the setting of the program is restored"
