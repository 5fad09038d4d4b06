"""Health pills wait packed (`observer/packed.h`) and are, as records, what the debug op makes of the same values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensortap as tt
from tensortap.engines.torch.observer.packed import PackedBatch
from tensortap.ops import DebugNumericSummary
from tensortap.ops.view import TensorView
from tensortap.records import RECORD_ROW, KeyTable, RecordBatch
from tensortap.sink.memory import collect
from tensortap.watch.match import watch_run

SPECIAL = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-300, 3e38)
DTYPES = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.bool: np.bool_,
    torch.complex64: np.complex64,
}


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=7))
    count = int(np.prod(shape))
    dtype = draw(st.sampled_from(list(DTYPES)))
    numbers = st.sampled_from(SPECIAL) if draw(st.booleans()) else st.floats(-100, 100)
    values = draw(st.lists(numbers, min_size=count, max_size=count))
    made = torch.tensor(values, dtype=torch.float64).reshape(shape)
    return (
        made.to(dtype) if dtype.is_floating_point or dtype.is_complex else made.nan_to_num(0, 1, -1).to(dtype)
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(tensors(), min_size=1, max_size=5))
def test_pills_are_those_of_the_debug_op(made):
    session = tt.torch.Session(
        lambda: {str(i): each.clone() for i, each in enumerate(made)}, interceptor="native"
    )
    options = tt.RunOptions()
    watch_run(
        options,
        tt.WatchOptions(["DebugNumericSummary"], node_name_regex_allowlist="clone(_[0-9]+)?$"),
        "memcbk:///packed",
    )
    with collect("packed") as records:
        session.run(None, {}, options)
    pills = [np.frombuffer(record.data, np.float64) for record in records]
    assert len(pills) == len(made)
    for pill, tensor in zip(pills, made, strict=True):
        expected = DebugNumericSummary().apply(TensorView.of_numpy(tensor.numpy()))
        np.testing.assert_array_equal(pill, expected)
    times = [record.timestamp for record in records]
    assert times == sorted(times)


def test_a_batch_is_unpacked_when_somebody_asks():
    asked = []

    def unpack(packed, count, beside, beside_size, base, rows, values, size):
        asked.append((count, beside_size, base, size))
        return 1

    batch = PackedBatch(KeyTable(), bytes(128), b"", 17, False, 2 * 112, unpack)
    assert isinstance(batch, RecordBatch)
    assert (len(batch), batch.nbytes, batch.has_bad, asked) == (2, 224, False, [])
    assert (batch.rows.dtype, len(batch.rows), len(batch.data)) == (RECORD_ROW, 2, 224)
    assert asked == [(2, 0, 17, 224)]
    with pytest.raises(AttributeError, match="no attribute 'columns'"):
        len(batch.columns)


def test_damaged_pills_are_refused():
    session = tt.torch.Session(lambda: {"y": torch.ones(2).clone()}, interceptor="native")
    session.run(None)
    from tensortap.engines.torch.observer.library import library

    one = PackedBatch(KeyTable(), bytes([0] * 16 + [200] + [0] * 47), b"", 0, None, 112, library().tt_unpack)
    with pytest.raises(ValueError, match="damaged"):
        len(one.rows)
