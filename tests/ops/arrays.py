"""Strategies: arrays of every dtype, with any bits, in any memory layout."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tensortap.ops.dtypes import CODES, HALF_COMPLEX, TABLE_DTYPES, numpy_dtype

# Those a NumPy array can have.
ARRAY_DTYPES = [name for name in CODES if name not in HALF_COMPLEX]
NARROW_INTEGERS = [name for name in TABLE_DTYPES if "int" in name]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 5e-324, 1e-40, 6e-8, 3e38, 65504.0, -2.0, 2.0]

shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
bounds = st.sampled_from([-np.inf, np.inf, -2.0, -0.5, 0.0, 0.1, 1.0, 2.0, 1e300, -1e300])


@st.composite
def layouts(draw, array):
    """The same elements seen with other strides: transposed, reversed, with gaps, repeated."""
    if array.ndim and draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 1, 1, -1, 2, -3]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    if draw(st.integers(0, 4)) == 0:
        array = np.broadcast_to(array, (draw(st.integers(1, 3)), *array.shape))
    return array


@st.composite
def arrays(draw, dtypes=tuple(ARRAY_DTYPES)):
    name = draw(st.sampled_from(dtypes))
    dtype = numpy_dtype(name)
    shape = draw(shapes)
    size = int(np.prod(shape))
    if draw(st.booleans()) or dtype.kind in "biu" or name in NARROW_INTEGERS:
        data = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
        flat = np.frombuffer(data, np.uint8)
        if name == "bool":
            flat = flat & 1
        if name in NARROW_INTEGERS:
            # Only what the type can hold; the other bits of the byte are the library's own business.
            flat = flat.astype(np.int8).astype(dtype).view(np.uint8)
        flat = flat.view(dtype)
    else:
        with np.errstate(all="ignore"):
            values = np.array(draw(st.lists(st.sampled_from(SPECIAL), min_size=size, max_size=size)))
            if dtype.kind == "c":
                other = draw(st.lists(st.sampled_from(SPECIAL), min_size=size, max_size=size))
                parts = np.stack([values, np.array(other, np.float64)], axis=-1)
                flat = np.ascontiguousarray(parts).view(np.complex128).reshape(-1).astype(dtype)
            else:
                flat = values.astype(np.float64).astype(dtype)
    return draw(layouts(flat.reshape(shape)))


def random_array(name, shape, seed=0):
    """Values around 0, some of them special, as that dtype holds them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 3
    dtype = numpy_dtype(name)
    with np.errstate(all="ignore"):
        if dtype.kind == "c":
            return (values + 1j * rng.standard_normal(shape)).astype(dtype)
        if dtype.kind in "u" or name.startswith("uint"):
            values = np.abs(values)
        if name in NARROW_INTEGERS:
            return np.clip(np.round(values), -1 if name.startswith("int") else 0, 0).astype(dtype)
        return values.astype(dtype)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
