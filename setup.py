"""Builds the native kernel and the checksums; everything else about the package is in pyproject.toml.

Both are optional: without a C compiler the package installs all the same and works with NumPy, slower,
and says so.
"""

from __future__ import annotations

import sysconfig

from setuptools import Extension, setup

# One build serves every CPython from 3.11; the free-threaded ones have no stable ABI.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

kernel = Extension(
    "tensortap.ops._kernel",
    sources=[f"native/{name}.c" for name in ("avx2", "avx512", "layout", "module", "portable", "summary")],
    include_dirs=["src/tensortap"],
    depends=["native/convert.inc", "native/summary.h", "src/tensortap/pill.h"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else [],
    py_limited_api=STABLE_ABI,
    # Never -ffast-math, which assumes that there is no NaN. Without contraction the same source gives the
    # same magnitudes on every instruction set.
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-g0",
        "-fno-math-errno",
        "-ffp-contract=off",
        "-fvisibility=hidden",
    ],
    optional=True,
)

checksums = Extension(
    "tensortap.store._crc32c",
    sources=["native/crc32c.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else [],
    py_limited_api=STABLE_ABI,
    extra_compile_args=["-std=c11", "-O3", "-g0", "-fvisibility=hidden"],
    optional=True,
)

setup(
    ext_modules=[kernel, checksums],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
