"""Which kernel is used, what it says about it, and how it behaves as a neighbour of the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tensortap.ops import TensorView, kernel
from tensortap.ops.dtypes import CODES

BUILT = kernel.native() is not None
needs_native = pytest.mark.skipif(not BUILT, reason="the native kernel was not built")


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout.strip(), done.stderr


def test_the_native_kernel_is_in_use_where_there_is_a_compiler():
    """A build that silently fell back to NumPy would pass every other test."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not (shutil.which(compiler) or shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("no C compiler here")
    assert kernel.native() is not None, "build it: pip install --no-build-isolation --editable ."
    assert kernel.isa() in ("avx512", "avx2", "portable")


@needs_native
def test_the_best_instruction_set_is_chosen():
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        pytest.skip("no /proc/cpuinfo")
    expected = "portable"
    if {"avx2", "fma", "f16c"} <= flags:
        expected = "avx512" if {"avx512dq", "avx512vl", "avx512_vbmi2"} <= flags else "avx2"
    assert kernel.isa() == expected


SUMMARISE_TWICE = """
import logging; logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
import numpy as np
from tensortap.ops import kernel
for _ in range(2):
    row = kernel.summary(np.array([1.0, np.nan]))
print(kernel.isa(), row[2])
"""
HIDE = "import sys; sys.modules['tensortap.ops._kernel'] = None\n"


def test_falling_back_is_said_once():
    out, err = run(HIDE + SUMMARISE_TWICE, TENSORTAP_KERNEL="auto")
    assert out == "numpy 1.0"
    assert err.count("tensortap.ops WARNING") == 1
    assert "TENSORTAP_KERNEL=numpy" in err


def test_numpy_by_choice_says_nothing():
    assert run(SUMMARISE_TWICE, TENSORTAP_KERNEL="numpy") == ("numpy 1.0", "")


def test_native_by_choice_fails_without_it():
    out, err = run(HIDE + SUMMARISE_TWICE, TENSORTAP_KERNEL="native")
    assert out == ""
    assert "FailedPreconditionError: TENSORTAP_KERNEL asks for the native kernel" in err


def test_a_choice_that_does_not_exist():
    assert "expected 'auto', 'native' or 'numpy'" in run(SUMMARISE_TWICE, TENSORTAP_KERNEL="fast")[1]


def test_a_stale_build_is_not_used():
    stale = "from tensortap.ops import _kernel; _kernel.TABLE = 3\n"
    out, err = run(stale + SUMMARISE_TWICE, TENSORTAP_KERNEL="auto")
    assert out == "numpy 1.0"
    assert "another version" in err


@needs_native
def test_where_the_row_goes():
    array = np.array([[1.0, -2.0]], np.float32)
    view = TensorView.of_numpy(array)
    call = (view.address, CODES["float32"], view.shape, view.strides, -np.inf, np.inf)
    native = kernel.native()
    expected = kernel.summary(array)
    table = np.zeros((2, 16))
    assert native.summary(*call, table[0]) is None
    assert native.summary(*call, table.ctypes.data + 128) is None
    np.testing.assert_array_equal(np.frombuffer(native.summary(*call, None)), expected)
    np.testing.assert_array_equal(table, [expected, expected])


@needs_native
def test_wrong_arguments_are_errors():
    native = kernel.native()
    array = np.zeros(4, np.float32)
    good = [array.ctypes.data, CODES["float32"], (4,), (1,), 0.0, 0.0, None]
    for position, bad, error in [
        (0, "x", TypeError),
        (1, 47, ValueError),
        (1, -1, ValueError),
        (1, 1 << 40, ValueError),
        (2, [4], TypeError),
        (2, (4, 1), ValueError),
        (2, (-4,), ValueError),
        (2, ("4",), TypeError),
        (3, (1 << 70,), OverflowError),
        (4, "low", TypeError),
        (6, np.zeros(3), ValueError),
        (6, bytes(200), BufferError),
        (6, 0, ValueError),
    ]:
        arguments = [*good[:position], bad, *good[position + 1 :]]
        with pytest.raises(error):
            native.summary(*arguments)
    with pytest.raises(TypeError):
        native.summary(*good[:6])
    with pytest.raises(ValueError, match="instruction set 'avx1024'"):
        native.use_isa("avx1024")
    with pytest.raises(ValueError, match="table"):
        native.configure(CODES["float32"], 1, bytes(1024))


@needs_native
def test_other_threads_run_during_a_large_summary():
    """The summary of one large tensor lets Python code of another thread proceed."""
    array = np.zeros((1 << 12, 1 << 12), np.float32)[:, ::3]  # strided: slow enough to watch
    done = threading.Event()
    ticks = []

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # with the lock held, nobody would be let in for that long
    ticker = threading.Thread(target=tick)
    try:
        start = time.perf_counter()
        ticker.start()
        kernel.summary(array)
        end = time.perf_counter()
    finally:
        sys.setswitchinterval(interval)
        done.set()
        ticker.join()
    assert any(start < at < end for at in ticks)


@needs_native
def test_threads_do_not_disturb_each_other():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(50_000).astype(np.float32) for _ in range(4)]
    expected = [kernel.summary(each) for each in arrays]
    wrong = []

    def work(index):
        same = [np.array_equal(kernel.summary(arrays[index]), expected[index]) for _ in range(50)]
        if not all(same):
            wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_native
def test_a_tiny_summary_is_cheap():
    """Budgeted at 1 µs; asserted with room for a busy machine."""
    array = np.ones(16, np.float32)
    out = np.empty(15)
    summary, address, code = kernel.native().summary, array.ctypes.data, CODES["float32"]
    best = min(
        _timed(lambda: [summary(address, code, (16,), (1,), -np.inf, np.inf, out) for _ in range(1000)])
        for _ in range(20)
    )
    assert best / 1000 < 3e-6


@needs_native
def test_a_large_summary_is_fast():
    """Budgeted at 0.4 ns per float32; asserted with room for a busy machine, and for one without AVX2."""
    array = np.ones(1 << 22, np.float32)
    best = min(_timed(lambda: kernel.summary(array)) for _ in range(10))
    assert best / array.size < (10e-9 if kernel.isa() == "portable" else 2e-9)


def _timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
