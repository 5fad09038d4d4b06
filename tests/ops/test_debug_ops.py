"""D12 to D21: what each debug op answers, for every dtype, and how it is made from a watch's text."""

from __future__ import annotations

import logging
import math

import ml_dtypes
import numpy as np
import pytest

from tensortap.errors import InvalidArgumentError
from tensortap.ops import (
    DebugHash,
    DebugIdentity,
    DebugNanCount,
    DebugNumericSummary,
    TensorView,
    make_debug_op,
)
from tests.ops.arrays import ARRAY_DTYPES, random_array

INF, NAN = math.inf, math.nan
UNINITIALISED = TensorView(0, "float32", (2,), (1,))
STRINGS = TensorView.of_numpy(np.array([[b"a", b"bc"]], dtype=object))
DATES = TensorView.of_numpy(np.array(["2020-01-01"], "datetime64[D]"))
RECORDS = TensorView.of_numpy(np.zeros(3, [("a", "f4"), ("b", "i4")]))
UNKNOWN = TensorView(64, "quint4x2", (5,), (1,))


def view_of(values, dtype=np.float32):
    return TensorView.of_numpy(np.array(values, dtype))


class TestIdentity:
    """D12."""

    @pytest.mark.parametrize("dtype", ARRAY_DTYPES)
    def test_the_value_itself(self, dtype):
        array = random_array(dtype, (3, 4))[:, ::-1]
        value = DebugIdentity().apply(TensorView.of_numpy(array))
        assert value.dtype == array.dtype
        assert value.flags.c_contiguous
        assert value.tobytes() == array.tobytes()

    def test_the_value_owns_its_memory(self):
        array = np.arange(4.0)
        value = DebugIdentity().apply(TensorView.of_numpy(array))
        array[:] = 0
        assert value.tolist() == [0, 1, 2, 3]
        assert value.flags.writeable
        assert value.flags.owndata

    def test_uninitialised_has_no_value(self):
        """D11, D16."""
        assert DebugIdentity().apply(UNINITIALISED) is None

    def test_strings_and_odd_types(self):
        assert DebugIdentity().apply(STRINGS).tolist() == [[b"a", b"bc"]]
        assert DebugIdentity().apply(DATES).tolist() == DATES.keepalive.tolist()
        assert DebugIdentity().apply(RECORDS).dtype == RECORDS.keepalive.dtype

    def test_a_type_nobody_knows_is_reported_once(self, caplog):
        view = TensorView(64, "invented_type", (5,), (1,))
        with caplog.at_level(logging.WARNING, "tensortap.ops"):
            assert DebugIdentity().apply(view) is None
            assert DebugIdentity().apply(view) is None
        assert len(caplog.records) == 1
        assert "invented_type" in caplog.text

    def test_half_complex_becomes_complex64(self):
        parts = np.array([[1, 2], [3, 4]], np.float16)
        view = TensorView(parts.ctypes.data, "complex32", (2,), (1,), parts)
        value = DebugIdentity().apply(view)
        assert value.dtype == np.complex64
        assert value.tolist() == [1 + 2j, 3 + 4j]


class TestNanCount:
    """D13."""

    def test_int64_of_length_one(self):
        value = DebugNanCount().apply(view_of([NAN, 1, NAN, INF]))
        assert (value.dtype, value.shape, value.tolist()) == (np.int64, (1,), [2])

    @pytest.mark.parametrize("view", [UNINITIALISED, STRINGS, DATES, RECORDS, UNKNOWN, view_of([1], np.int8)])
    def test_zero_without_nan(self, view):
        assert DebugNanCount().apply(view).tolist() == [0]

    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64])
    def test_other_floats(self, dtype):
        assert DebugNanCount().apply(view_of([NAN, 1, NAN], dtype)).tolist() == [2]


class TestNumericSummary:
    """D14 to D17."""

    def test_example(self):
        op = DebugNumericSummary(lower_bound=-2, upper_bound=2)
        found = op.apply(view_of([-5, -2, 0, 1, 5, NAN]))
        np.testing.assert_allclose(found, [1, 6, 1, 2, 0, 1, 1, 1, -5, 5, -0.2, 10.96, 1, 1, 6])

    @pytest.mark.parametrize(("view", "number"), [(STRINGS, 7), (DATES, -1), (RECORDS, -1), (UNKNOWN, -1)])
    def test_what_is_no_number_is_counted_only(self, view, number):
        """X13: TensorFlow fails the run here (D18)."""
        found = DebugNumericSummary().apply(view)
        rank = len(view.shape)
        expected = [1, view.size, 0, 0, 0, 0, 0, 0, INF, -INF, NAN, NAN, number, rank, *view.shape]
        np.testing.assert_array_equal(found, expected)

    def test_more_dimensions_than_numpy_has(self):
        found = DebugNumericSummary().apply(TensorView(64, "float32", (1,) * 70, (1,) * 70))
        assert found.shape == (84,)
        assert found[:2].tolist() == [1, 1]

    def test_long_double(self):
        found = DebugNumericSummary().apply(view_of([1, 2, NAN], np.longdouble))
        assert found[:12].tolist() == [1, 3, 1, 0, 0, 0, 2, 0, 1, 2, 1.5, 0.25]

    @pytest.mark.parametrize(
        ("values", "published"),
        [([1, 0, -1], False), ([NAN], True), ([INF], True), ([-INF], True), ([9], True)],
    )
    def test_mute_if_healthy(self, values, published):
        """D17: published if anything is in slots 2, 3 or 7."""
        op = DebugNumericSummary(upper_bound=5, mute_if_healthy=True)
        assert (op.apply(view_of(values)) is not None) == published

    def test_empty_is_healthy_and_what_has_no_value_to_look_at_is_not(self):
        op = DebugNumericSummary(mute_if_healthy=True)
        assert op.apply(view_of([])) is None
        assert op.apply(UNINITIALISED)[:8].tolist() == [0] * 8

    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
    def test_bounds_have_the_precision_of_the_tensor(self, dtype):
        """As TensorFlow's float32 bounds have for float32."""
        view = view_of([0.1, -0.1], dtype)
        assert DebugNumericSummary(lower_bound=0.1).apply(view)[3] == 2
        assert DebugNumericSummary(upper_bound=0.1).apply(view)[7] == 1
        assert DebugNumericSummary(lower_bound=-1e300, upper_bound=1e300).apply(view)[[3, 7]].tolist() == [
            0,
            0,
        ]


class TestHash:
    def digest(self, array):
        value = DebugHash().apply(TensorView.of_numpy(array))
        assert (value.dtype, value.shape) == (np.uint8, (16,))
        return bytes(value).hex()

    def test_it_never_changes(self):
        """Hashes are compared between runs and machines, so the algorithm is part of the format."""
        values = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert self.digest(values) == "5ade907855c6bb74e34798dc9a48e6a8"

    def test_layout_does_not_matter(self):
        array = random_array("float32", (8, 6))
        for strided in (array.T, array[::2, ::-1], np.broadcast_to(array, (3, 8, 6)), array[:0]):
            assert self.digest(strided) == self.digest(strided.copy())

    def test_dtype_shape_and_bits_matter(self):
        zeros = np.zeros((2, 3), np.float32)
        others = [
            zeros.T,
            zeros.view(np.int32),
            zeros.reshape(6),
            -zeros,
            zeros + 1,
            zeros.astype(np.float64),
        ]
        assert len({self.digest(each) for each in [zeros, *others]}) == 7

    def test_the_same_through_an_address(self):
        for dtype in ("bfloat16", "float8_e5m2", "complex128", "bool"):
            array = random_array(dtype, (5, 4))
            view = TensorView(array.ctypes.data, dtype, (4, 5), (1, 4), array)
            assert bytes(DebugHash().apply(view)).hex() == self.digest(array.T)

    def test_strings(self):
        text = [np.array(v, dtype=object) for v in (["ab", "c"], [b"ab", b"c"], ["a", "bc"], [None, 1])]
        one, two, three, four = (self.digest(each) for each in text)
        assert one == two == self.digest(np.array(["ab", "c"])) == self.digest(np.array([b"ab", b"c"]))
        assert len({one, three, four}) == 3

    @pytest.mark.parametrize("view", [UNINITIALISED, UNKNOWN])
    def test_nothing_to_hash(self, view):
        assert DebugHash().apply(view).tolist() == [0] * 16


class TestMaking:
    """D17 and D20."""

    def test_attributes(self):
        texts = {"lower_bound": "-1e3", "upper_bound": "inf", "mute_if_healthy": "TRUE", "gated_grpc": "f"}
        assert make_debug_op("DebugNumericSummary", texts) == DebugNumericSummary(
            lower_bound=-1000.0, upper_bound=INF, mute_if_healthy=True, gated_grpc=False
        )

    @pytest.mark.parametrize("name", ["DebugIdentity", "DebugNanCount", "DebugNumericSummary", "DebugHash"])
    def test_every_op_can_be_gated(self, name):
        op = make_debug_op(name, {"gated_grpc": "1"})
        assert (op.name, op.gated_grpc) == (name, True)
        assert not make_debug_op(name).gated_grpc

    @pytest.mark.parametrize(("text", "value"), [
        ("true", True), ("T", True), ("1", True), ("False", False), ("f", False), ("0", False),
    ])  # fmt: skip
    def test_booleans(self, text, value):
        assert make_debug_op("DebugHash", {"gated_grpc": text}).gated_grpc is value

    @pytest.mark.parametrize(("key", "text"), [
        ("gated_grpc", "yes"), ("mute_if_healthy", ""), ("lower_bound", "low"), ("upper_bound", "nan"),
        ("upper_bound", "1_0"),
    ])  # fmt: skip
    def test_bad_values(self, key, text):
        with pytest.raises(InvalidArgumentError, match=f"{text!r} is no value for the attribute {key}"):
            make_debug_op("DebugNumericSummary", {key: text})

    def test_unknown_attributes(self):
        with pytest.raises(
            InvalidArgumentError, match=r"2 attribute key\(s\) were not valid: foo, lower_bound"
        ):
            make_debug_op("DebugIdentity", {"foo": "1", "gated_grpc": "1", "lower_bound": "0"})

    def test_unknown_op_suggests(self):
        with pytest.raises(InvalidArgumentError, match="Did you mean 'DebugNumericSummary'"):
            make_debug_op("DebugNumericSumary", {})
